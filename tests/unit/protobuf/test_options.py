"""Options of both functions."""

from __future__ import annotations

import pytest

from connectors.core.errors import OptionError
from connectors.protobuf.options import ProtobufOptions, parse_protobuf_options


def test_option_names_are_taken_in_any_case_and_unknown_ones_are_refused() -> None:
    parsed = parse_protobuf_options({"EMIT.Default.Values": "TRUE", "Recursive.Fields.Max.Depth": "3"}, "from_protobuf")
    assert parsed.emit_default_values
    assert parsed.recursive_fields_max_depth == 3
    assert parse_protobuf_options(None, "from_protobuf") == ProtobufOptions()
    with pytest.raises(OptionError, match=r"emit\.default\.values"):
        parse_protobuf_options({"emit.defaults": "true"}, "from_protobuf")
    with pytest.raises(OptionError, match=r"on\.error.*PERMISSIVE"):
        parse_protobuf_options({"on.error": "column", "Mode": "FAILFAST"}, "from_protobuf")
    assert parse_protobuf_options({"on.error": "column"}, "from_protobuf").permissive
    with pytest.raises(OptionError, match="OPTION_ILLEGAL"):
        parse_protobuf_options({"enums.as.ints": "yes"}, "from_protobuf")
