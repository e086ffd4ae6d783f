"""``connectors protos build``: the descriptor set holds what the files import, and errors name the line."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from connectors.cli.main import app
from connectors.core.formats import install_command
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.schema.plan import compile_plan
from connectors.protobuf.worker import schema_of
from tests.support.docs_facts import Page

PAGE = Path("docs/how-to/descriptor-sets.md")
ROOT = Path(__file__).parents[3]


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["protos", "build", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


def columns(path: Path, message: str) -> str:
    schema = schema_of(path.read_bytes())
    return compile_plan(schema.find(message), schema, ProtobufOptions()).spark_type.simpleString()


def test_the_how_to_builds_a_set_with_its_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    page = Page(PAGE, (ROOT / PAGE).read_text())
    for block in page.blocks("proto"):
        (tmp_path / block.partition("\n")[0].removeprefix("// ")).write_text(block)
    [command] = page.blocks("sh")
    assert "2 files" in run(*shlex.split(command)[3:]).stdout
    kind = "struct<id:bigint,item:struct<name:string>,created:timestamp>"
    assert columns(tmp_path / "shop.desc", "shop.Order") == kind
    run("shop")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/x.proto").write_text("nonsense")
    assert "(bad/x.proto:1:1)" in run("bad", code=2).stderr
    assert (tmp_path / "shop.desc").exists()
    (tmp_path / "shop/items.proto").rename(tmp_path / "items.proto")
    assert "was not found" in run("shop", code=2).stderr
    run("shop", "--include", tmp_path, "--output", "other.desc")
    assert columns(tmp_path / "other.desc", "Order") == kind


def test_an_error_has_file_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "x.proto").write_text('syntax = "proto3";\nmessage X {\n  int33 id = 1;\n  strin y = 2;\n}\n')
    stderr = run(tmp_path, "--output", tmp_path / "x.desc", code=2).stderr
    assert stderr.startswith(
        f'[PROTOS_REFUSED] protoc says: "int33" is not defined. (and 1 more) ({tmp_path}/x.proto:3:3)'
    )
    assert not (tmp_path / "x.desc").exists()


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    assert "PROTOS_NOT_FOUND" in run(tmp_path, code=2).stderr
    (tmp_path / "x.proto").write_text('syntax = "proto3";\n')
    refused = run(tmp_path, "--output", tmp_path / "gone" / "x.desc", code=2).stderr
    assert refused.startswith("[PROTOS_REFUSED]")
    assert "Let --output name a file" in refused


def test_without_its_extra_the_command_says_which_one_it_needs(tmp_path: Path) -> None:
    code = "import sys; sys.modules['grpc_tools'] = None; from connectors.cli.main import main; main()"
    command = [sys.executable, "-c", code, "protos", "build", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        "[PACKAGES_MISSING] These packages are not installed: grpc_tools (this command). "
        f"Install the extra protos: {install_command('protos')}.\n"
    )


@pytest.mark.parametrize(
    "name", ["@args/x.proto", "--foo.proto", "-x.proto", "@x.proto", "a\x1b[2J.proto", "a\udcff.proto"]
)
def test_a_name_that_protoc_takes_for_an_argument_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('syntax = "proto3"; message X {}')
    refused = run(".", "--output", "x.desc", code=2).stderr
    assert refused.startswith("[PROTOS_NAME_REFUSED]")
    assert ascii(name) in refused
    assert not (tmp_path / "x.desc").exists()


def test_a_file_of_arguments_runs_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, plugin, folder = tmp_path / "ran", tmp_path / "plugin", tmp_path / "protos"
    plugin.write_text(f"#!/bin/sh\ntouch {ran}\n")
    plugin.chmod(0o755)
    (folder / "@..").mkdir(parents=True)
    for path in (folder / "@.." / "x.proto", folder / "y.proto"):
        path.write_text('syntax = "proto3";')
    (tmp_path / "x.proto").write_text(f"--plugin=protoc-gen-x={plugin}\n--x_out=.\n")
    monkeypatch.chdir(folder)
    run(".", "--output", "x.desc", code=2)
    assert not ran.exists()


def test_names_with_a_dash_or_an_at_further_down_are_compiled_and_so_is_a_folder_of_such_a_name(tmp_path: Path) -> None:
    for name in ("a/@scope/x.proto", "a/-y.proto"):
        (tmp_path / "-@" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "-@" / name).write_text(f'syntax = "proto3"; message M{len(name)} {{}}')
    assert "2 files" in run(tmp_path / "-@", "--output", tmp_path / "x.desc").stdout


MONEY = 'syntax = "proto3"; package google.type; message Money { int64 units = 1; }'
STAMP = 'syntax = "proto3"; package google.protobuf; message Timestamp { int64 seconds = 1; int32 nanos = 2; }'
ITEM = 'syntax = "proto3"; package shop; message Item { string name = 1; }'
LAYOUTS: dict[str, tuple[dict[str, str], str, list[str]]] = {
    "third_party": (
        {"shop/order.proto": 'import "google/type/money.proto";', "third_party/google/type/money.proto": MONEY},
        "",
        ["--root", "third_party"],
    ),
    "vendored protobuf": (
        {
            "shop/order.proto": 'import "google/protobuf/timestamp.proto"; import "google/type/money.proto";',
            "google/protobuf/timestamp.proto": STAMP,
            "vendor/google/protobuf/timestamp.proto": STAMP,
            "vendor/google/type/money.proto": MONEY,
        },
        "",
        ["--root", "vendor"],
    ),
    "copies of a build": (
        {
            "shop/order.proto": 'import "shop/item.proto"; // import "gone.proto";',
            "shop/item.proto": ITEM,
            "build/protos/shop/item.proto": ITEM,
        },
        "",
        [],
    ),
    "a folder below the root": (
        {"shop/order.proto": 'import "shop/item.proto"; /* import "gone.proto"; */', "shop/item.proto": ITEM},
        "shop",
        ["--root", "."],
    ),
    "one of two versions": (
        {"v1/item.proto": ITEM, "v2/item.proto": ITEM.replace("name", "title"), "shop/order.proto": ""},
        "",
        ["--exclude", "v1/*"],
    ),
}
ORDER = "message Order { int64 id = 1; }"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_imports_are_found_below_the_roots_that_were_named(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, folder, arguments = LAYOUTS[layout]
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        {
            name: text if "syntax" in text else f'syntax = "proto3"; package shop; {text}\n{ORDER}'
            for name, text in files.items()
        },
    )
    run(folder or ".", "--output", "all.desc", *arguments)
    assert columns(tmp_path / "all.desc", "shop.Order") == "struct<id:bigint>"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_two_files_that_define_the_same_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"v1/item.proto": ITEM, "v2/item.proto": ITEM.replace("name", "title")})
    stderr = run(".", code=2).stderr
    assert 'is already defined in file "v1/item.proto"' in stderr
    assert "(v2/item.proto:1:" in stderr
    assert "leave one out by --exclude" in stderr
    run(".", "--exclude", "v2/*", "--output", "v1.desc")


def test_two_files_with_one_name_below_two_roots_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    order = f'syntax = "proto3"; package shop; import "item.proto"; {ORDER}'
    write(tmp_path, {"a/item.proto": ITEM, "b/item.proto": ITEM.replace("name", "title"), "order.proto": order})
    roots = ["--root", "a", "--root", "b"]
    stderr = run(".", *roots, code=2).stderr
    assert (
        "[PROTOS_COLLIDE] a/item.proto and b/item.proto are imported under the same name, but differ (item.proto)"
        in stderr
    )
    for excluded, expected in (("b/*", "struct<name:string>"), ("a/*", "struct<title:string>")):
        run(".", *roots, "--exclude", excluded, "--output", f"{excluded[0]}.desc")
        assert columns(tmp_path / f"{excluded[0]}.desc", "shop.Item") == expected
    refused = run(".", "--exclude", "b/*", code=2).stderr
    assert "was not found" in refused
    assert "--root" in refused
