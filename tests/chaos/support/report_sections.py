"""What the fault report says of single runs: outcomes of each cell, of each soak, of each kind of table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Trial = Mapping[str, Any]


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table, an empty line before it."""
    return [
        "",
        f"| {' | '.join(titles)} |",
        f"|{'---|' * len(titles)}",
        *(f"| {' | '.join(map(str, r))} |" for r in rows),
    ]


def cells(trials: Sequence[Trial], text: Callable[[Trial], str]) -> list[str]:
    """Return a table of flows by faults; a cell has the text of each trial, or nothing where none was tried."""
    flows = sorted({trial["flow"] for trial in trials if "flow" in trial})
    rows = []
    for fault in sorted({trial["fault"] for trial in trials if "fault" in trial}):
        own = [trial for trial in trials if trial.get("fault") == fault]
        texts = ("; ".join(text(trial) for trial in own if trial["flow"] == flow) for flow in flows)
        rows.append((fault.replace("_", " "), *texts))
    return table(("", *(f"`{flow}`" for flow in flows)), rows)


def network(record: Mapping[str, Any]) -> list[str]:
    """Return what became of the query in each cell of the network, and what it held afterwards."""

    def text(trial: Trial) -> str:
        if not trial["ok"]:
            return f"**wrong**: {first_line(trial)}"
        came = trial["became"].replace("went on by itself", "went on").replace("stopped with ", "")
        return f"{came}, {trial['caught_up_seconds']:g} s"

    measured = [trial for trial in record["trials"] if "after" in trial]
    more = {
        name: max((trial["after"][name] - trial["before"][name] for trial in measured), default=0)
        for name in ("memory_mb", "connections", "spool_files")
    }
    return [
        "## A bad network, cell by cell",
        "",
        (
            "Each cell says whether the query continued by itself, or stopped with the error that is named and "
            "continued when it was started again, and how long after the end of the fault all records had arrived. "
            "`jvm`, `broker`, `fetcher`, `source runner` and `worker` were paused for 60 s. After its fault, no query "
            f"had more than {more['memory_mb']} MB of memory, {more['connections']} connections and "
            f"{more['spool_files']} files in its spool above what it had before."
        ),
        *cells(record["trials"], text),
    ]


def cluster(record: Mapping[str, Any]) -> list[str]:
    """Return how each fault of a cluster ended for each flow."""

    def text(trial: Trial) -> str:
        if not trial["ok"]:
            return f"**wrong**: {first_line(trial)}"
        seconds = trial.get("seconds_until_new_rows")
        return f"{trial['counts']['messages']:,}, right" + (f", {max(seconds):g} s" if seconds else "")

    return [
        "## A cluster, cell by cell",
        "",
        "Records of each trial. Right means: none was lost, altered or out of order, or doubled where the format",
        "promises otherwise. Kafka to Kinesis is at least once, and repeated some. The seconds are those from",
        "the fault until the sink had new rows, at most 60. Where none stand, no rows were left to come, or",
        "the trial is older than this measurement.",
        *cells(record["trials"], text),
    ]


def soak(record: Mapping[str, Any]) -> list[str]:
    """Return what each soak held in its first and in its last sixth."""
    done = [trial for trial in record["trials"] if "medians" in trial]
    names = list(dict.fromkeys(name for trial in done for name in trial["medians"]))
    rows: list[Sequence[object]] = [
        ("minutes", *(f"{trial['minutes']:g}" for trial in done)),
        ("records", *(f"{trial['counts']['messages']:,}" for trial in done)),
        ("kills", *(trial["counts"]["kills"] for trial in done)),
        ("splits and merges", *(trial["counts"].get("splits", 0) + trial["counts"].get("merges", 0) for trial in done)),
        ("lost, doubled", *(f"{trial['counts']['lost']}, {trial['counts']['doubled']}" for trial in done)),
    ]
    for name in names:
        medians = [trial["medians"].get(name, {}) for trial in done]
        rows.append((name.replace("_", " "), *(f"{each.get('first')} to {each.get('last')}" for each in medians)))
    rows.append(("verdict", *("ok" if trial["ok"] else f"**{first_line(trial)}**" for trial in done)))
    if any("judged" in trial for trial in done):
        before = ("; ".join(trial["judged"]["before"]) if "judged" in trial else "the same" for trial in done)
        rows.append(("verdict of the run itself, before the rule was corrected", *before))
    return [
        "## An hour with a fault every minute",
        "",
        "Medians of the first and of the last sixth of each run (of files in the spool: the least, without the first",
        "minute, in which the spool is still empty).",
        "Latency is in seconds from publish to sink.",
        *table(("", *(f"`{trial['flow']}`" for trial in done)), rows),
    ]


def lakehouse(record: Mapping[str, Any]) -> list[str]:
    """Return what kills did to each table."""
    rows = [
        (
            f"`{part}`",
            each.get("kills", 0),
            f"{each.get('messages', 0):,}",
            each.get("repeated_after_commit", 0),
            each.get("lost", 0),
            each.get("doubled", 0),
            each["failed"],
            f"{bound:.1%}" if (bound := each.get("failure_rate_upper_bound_95")) else "",
        )
        for part, each in record["summary"].items()
    ]
    titles = ("source and way", "kills", "records", "repeated after their commit, skipped", "lost", "doubled")
    return ["## Into Delta tables", *table((*titles, "failed trials", "bound"), rows)]


def kills(record: Mapping[str, Any]) -> list[str]:
    """Return what kills at random moments did in each part."""
    names = ("trials", "kills", "messages", "replays_compared", "replays_differing", "lost", "doubled", "failed")
    rows = []
    for part, each in record["summary"].items():
        if "victims" in each:
            counts = (f"{each.get(name, 0):,}" for name in names)
            bound = each["failure_rate_upper_bound_95"]
            rows.append((f"`{part}`", *counts, f"{bound:.1%}" if bound else ""))
    title = {"kinesis": "Kinesis", "pubsub": "Pub/Sub"}[record["what"]]
    titles = ("part", "trials", "kills", "records", "replays", "that differ", "lost", "doubled", "failed trials")
    return [
        f"## Kills at random moments of {title} queries",
        "",
        "A part whose name begins with a server ran on that one, which we did not write; the others ran on ours.",
        *table((*titles, "bound"), rows),
    ]


def hostile(record: Mapping[str, Any]) -> list[str]:
    """Return what became of the hostile attempts of each kind."""
    rows = []
    for trial in record["trials"]:
        counts = trial.get("counts", {})
        used = ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in HOSTILE_USED if name in counts)
        codes = ", ".join(f"`{code}`" for code in trial.get("codes", ()))
        wrong = f"{counts.get('wrong', 0):,}" if trial["ok"] else f"**{counts.get('wrong', 1):,}**: {first_line(trial)}"
        what = trial.get("what", trial["trial"])
        rows.append((what, f"{counts.get('attempts', 0):,}", used, f"{counts.get('refused', 0):,}", codes, wrong))
    total = sum(trial.get("counts", {}).get("attempts", 0) for trial in record["trials"])
    return [
        "## Hostile input",
        "",
        (
            f"{total:,} attempts, of which each must give the same rows or a named error, within bounds of time and "
            "memory. Wrong is all else: an unnamed error, a signal, a hang, other rows, or what controls a terminal. "
            "Forged are valid rows of a segment whose checksums were made right: who can write a spool can do that."
        ),
        *table(("kind", "attempts", "used", "refused", "by", "wrong"), rows),
    ]


def avro(record: Mapping[str, Any]) -> list[str]:
    """Return what was compared with the other implementations of Avro."""
    sums: Counter[str] = Counter()
    for trial in record["trials"]:
        sums.update(trial.get("counts", {}))
    wrong = [first_line(trial) for trial in record["trials"] if not trial["ok"]]
    java, fastavro = record["settings"]["java_avro"], record["versions"]["fastavro"]
    rows = [(what, f"{sums[name]:,}") for name, what in AVRO_COUNTS.items()]
    rows.append(("differences", f"**{'; '.join(wrong)}**" if wrong else f"{sums['wrong']:,}"))
    return [
        "## Random Avro values",
        "",
        (
            f"Read and written by `from_avro` and `to_avro`, by Java's Avro {java} and by fastavro {fastavro}: what we "
            "read is compared with what Java reads, of damaged messages too, and with fastavro where nothing was "
            "damaged; what we write with what both read of it; and what Java writes, with lists in blocks, with what "
            "we read. Each comparison must see the faults that are planted into it: a changed value, a row too few, "
            "a row that is NULL, neighbours in the wrong order. fastavro fails where a type has its name in one "
            "schema and is defined in the other, and of a reader's union takes another branch than Java."
        ),
        *table(("", "count"), rows),
    ]


AVRO_COUNTS = {
    "schemas": "schemas",
    "resolved": "of which the reader has another one",
    "rows": "messages",
    "damaged": "of which cut or changed",
    "bad_rows": "bad rows, for Java and for us",
    "compared": "comparisons of rows",
    "not_in_fastavro": "messages that fastavro cannot read, or reads in another way than Java",
    "planted": "planted faults",
    "planted_seen": "of which seen",
}
"""What the record counts, in words."""


HOSTILE_USED = ("same", "accepted", "read", "shown", "forged", "bad_rows")
"""What became of attempts that were not refused: the count has the name of each."""


def versions(record: Mapping[str, Any]) -> list[str]:
    """Return what kills did on each version of Spark, and what moves from one to another did."""
    killed = [trial for trial in record["trials"] if not trial["part"].endswith("-moves")]
    moved = [trial for trial in record["trials"] if trial["part"].endswith("-moves")]
    flows = list(
        dict.fromkeys(trial["part"].partition("-spark-")[0].removesuffix("-moves") for trial in record["trials"])
    )
    lines = sorted({trial["part"].partition("-spark-")[2] for trial in killed})
    rows: list[Sequence[object]] = []
    for line in lines:
        own = {flow: [trial for trial in killed if trial["part"] == f"{flow}-spark-{line}"] for flow in flows}
        ran = sorted({trial["spark"] for trials in own.values() for trial in trials if "spark" in trial})
        rows.append((", ".join(ran) or line, *(_counted(own[flow]) for flow in flows)))
    ways = [_counted([trial for trial in moved if trial["part"] == f"{flow}-moves"]) for flow in flows]
    rows.append(("one checkpoint through all of them, up and down again", *ways))
    return [
        "## On each version of Spark",
        "",
        (
            "Kills of JVM, driver, source process, fetchers and workers, and the records that were read or copied. "
            "Each batch that was repeated after a kill is compared with its first run, but for Kafka exactly once, "
            "whose target shows no batches. Before each move the driver was killed with all below it within a batch, "
            "and the next version repeated that batch. Wrong is what was lost, doubled, altered, out of order, or "
            "different when repeated."
        ),
        *table(("Spark", *(f"`{flow}`" for flow in flows)), rows),
    ]


PEER_PARTS = {
    "split_before": "a shard split before the stream is read",
    "split_while_read": "a shard split while it is read",
    "empty_data": "seven records, the third without data",
    "kills": "kills of the driver, while records come",
    "kills_and_splits": "kills of the driver, while records come and shards are split and merged",
}
"""The parts of the run beside a peer, in words."""


def peers(record: Mapping[str, Any]) -> list[str]:
    """Return what the same splits and kills did to ours and to the peer."""
    rows: list[Sequence[object]] = []
    for part in dict.fromkeys(trial["part"] for trial in record["trials"]):
        # A trial that broke off has no counts of either side.
        own = [trial for trial in record["trials"] if trial["part"] == part and "theirs" in trial]
        for name, sides in (("ours", own), ("theirs", [trial["theirs"] for trial in own])):
            names = ("kills", "messages", "lost", "doubled", "replays_compared", "replays_differing")
            sums = [sum(side["counts"].get(each, 0) for side in sides) for each in names]
            rows.append((PEER_PARTS[part], name, *(f"{count:,}" for count in sums)))
    peer, spark = record["settings"]["peer"][:7], record["settings"]["spark"]
    return [
        "## Beside awslabs' Kinesis connector",
        "",
        (
            f"The same faults of the same seed, first for ours and then for theirs, its commit `{peer}`, on Spark "
            f"{spark} and our server. Theirs was told to end a batch after 10 s, and was waited for until no row had "
            "come for 60 s. The matrix above has ours alone."
        ),
        *table(("fault", "side", "kills", "records", "lost", "doubled", "replays", "that differ"), rows),
    ]


LATE_HARM = ("lost", "doubled", "torn", "hanging")
"""What the count of a late request's trial may find."""


def late_commits(record: Mapping[str, Any]) -> list[str]:
    """Return what late requests did on each version of Kafka: to our sink, and to producers that are used again."""
    rows: list[Sequence[object]] = []
    reused: list[Sequence[object]] = []
    for part in sorted(dict.fromkeys(trial["part"] for trial in record["trials"])):
        own = [trial for trial in record["trials"] if trial["part"] == part]
        version, _, kind = part.partition(" ")
        if kind in LATE_REUSED:
            harm = [sum(t.get("altered", {}).get(name, 0) for t in own) for name in (*LATE_HARM, "aborted_but_seen")]
            reused.append(
                (version, LATE_REUSED[kind], len(own), sum(any(t.get("altered", {}).values()) for t in own), *harm)
            )
        else:
            names = ("late", "refused", "kills", "aborted", *LATE_HARM)
            sums = [sum(trial.get("counts", {}).get(name, 0) for trial in own) for name in names]
            wrong = [first_line(trial) for trial in own if not trial["ok"]]
            verdict = f"**{'; '.join(wrong)}**" if wrong else 0
            least = min(Counter(trial["trial"].rpartition("-")[0] for trial in own).values())
            counted = f"{len(own)}, at least {least} of each cell"
            rows.append((version, LATE_PARTS.get(kind, kind), counted, *(f"{count:,}" for count in sums), verdict))
    ours = [trial for trial in record["trials"] if "answers" in trial and "altered" not in trial]
    answers = []
    for request in dict.fromkeys(trial["request"] for trial in ours):
        own = [trial for trial in ours if trial["request"] == request]
        counted = Counter(error for trial in own for error in trial["answers"])
        told = ", ".join(f"`{error}` {count:,}" for error, count in counted.most_common())
        answers.append((request.replace("_", " "), len(own), told))
    return [
        "## Requests of a transaction that arrive late, by version of Kafka",
        "",
        (
            "A proxy held one request of an exactly-once write: the commit, an abort, adding partitions or offsets, "
            "rows, the marker, or the start of a producer. Its client sent it again, gave up, or was killed, or the "
            "broker was. The request then reached the broker before the next attempt, within it, after its commit, or "
            "within the third one. Torn counts the batches of which a careful consumer saw some rows and not all, "
            "hanging the topics in which a transaction stayed open. A cell is a request with a time at which it "
            "arrives; the ways in which its client goes on take turns."
        ),
        *table(
            (
                *("Kafka", "time of the late request", "trials", "late requests", "of which refused", "kills"),
                *("rows aborted", *LATE_HARM, "wrong trials"),
            ),
            rows,
        ),
        "",
        "What the brokers answered to the late requests of our sink:",
        *table(("late request", "trials", "answers"), answers),
        "",
        (
            "As a control, the same against producers that are used again, in one epoch, which must take harm: our "
            "sink, altered to do so, and a producer of confluent-kafka alone. A late commit there makes rows visible "
            "that belong to the next transaction; a late abort takes rows away, unless a request after it is refused."
        ),
        *table(
            ("Kafka", "who", "trials", "harmed", "rows lost", "doubled", "torn", "hanging", "aborted, but seen"), reused
        ),
    ]


LATE_PARTS = {
    "": "by the next attempts",
    "timeout": "after the transaction's time limit",
    "spark": "within a later task, in a query of Spark",
    "long": "30, 60 and 120 s later",
}
LATE_REUSED = {"reused": "our sink, altered", "client": "confluent-kafka"}


def _counted(trials: Sequence[Trial]) -> str:
    if not trials:
        return "not run"
    names = ("kills", "messages", "replays_compared")
    kills, records, repeated = (sum(trial.get("counts", {}).get(name, 0) for trial in trials) for name in names)
    wrong = [first_line(trial) for trial in trials if not trial["ok"]]
    text = f"{kills} kills, {records:,} records, {repeated} batches repeated: "
    return text + ("0 wrong" if not wrong else f"**{'; '.join(wrong)}**")


def histories(record: Mapping[str, Any]) -> list[str]:
    """Return how many simulated histories were run, and after how many each planted bug was found."""
    by_part = {part: [t for t in record["trials"] if t["part"] == part] for part in ("histories", "planted")}
    run = by_part["histories"]
    sums = {name: sum(t["counts"][name] for t in run) for name in ("histories", "faults_inflicted", "steps")}
    wrong = [fault for trial in run for fault in trial["faults"]]
    seconds = sum(trial["seconds"] for trial in run)
    minutes = f"{60 * sums['histories'] / seconds:,.0f}" if seconds else "none"
    return [
        "## Simulated histories",
        "",
        (
            "Each is decided by one seed: every interleaving of the spool's threads, every fault and every time. "
            "[How they work](../explanation/tested.md#simulated-histories), and how a seed is run again."
        ),
        "",
        *table(
            ("", "count"),
            [
                ("histories", f"{sums['histories']:,}"),
                ("faults in them", f"{sums['faults_inflicted']:,}"),
                ("steps of the scheduler", f"{sums['steps']:,}"),
                ("histories a minute, on two cores", minutes),
                ("wrong", len(wrong)),
            ],
        ),
        *table(
            ("planted bug", "histories until it was found", "what was seen"),
            [
                (
                    trial["bug"].rstrip("."),
                    trial["counts"]["histories_until_found"],
                    _cut(trial["found"]) or "**nothing**",
                )
                for trial in by_part["planted"]
            ],
        ),
    ]


def _cut(text: str) -> str:
    """Return the beginning of what was wrong, without what would end a row of a table."""
    return text.partition(" (")[0].replace("|", "/")[:90]


SECTIONS: Mapping[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "avro": avro,
    "network": network,
    "hostile": hostile,
    "cluster": cluster,
    "soak": soak,
    "kinesis": kills,
    "pubsub": kills,
    "lakehouse": lakehouse,
    "lakehouse_jar": lakehouse,
    "versions": versions,
    "peers": peers,
    "late_commits": late_commits,
    "histories": histories,
}
"""By the name of the record."""


def first_line(trial: Trial) -> str:
    """Return the first line of what was wrong with a trial."""
    return str(trial["faults"][0]).splitlines()[0][:80].replace("|", "/") if trial["faults"] else "no reason"
