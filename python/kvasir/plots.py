"""Draws what `kvasir study --json` has measured: python3 -m kvasir.plots JSONFILE OUTFILE.

The file's name ends in .png or .svg. Needs matplotlib. Only what is in the document is drawn.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

matplotlib.use("agg")

Document = dict[str, Any]

# Okabe and Ito's colours, which can be told apart by everybody.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "kvasir",
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


def plain_ticks(axis: Any, values: list[float] | None = None) -> None:
    """Of a logarithmic axis: numbers as they are, at these values or at 1, 2 and 5 of each decade."""
    axis.set_major_locator(FixedLocator(values) if values is not None else LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def column(rows: list[Document], name: str, scale: float = 1.0) -> list[float]:
    return [row[name] * scale for row in rows]


def draw_cache(document: Document) -> None:
    batches = list(dict.fromkeys(curve["batch"] for curve in document["curves"]))
    _, axes = pyplot.subplots(1, len(batches), figsize=(5.6 * len(batches) + 1, 4.4), squeeze=False, sharey=True)
    for axis, batch in zip(axes[0], batches, strict=True):
        draw_cache_batch(axis, document, batch)
    axes[0][0].set_ylabel("time until the last new token [s]")
    pyplot.suptitle(
        f"Decoding with and without the KV cache ({document['n_layer']} layers, width {document['d_model']}, "
        f"prompt of {document['prompt']} tokens)"
    )


def draw_cache_batch(axis: Any, document: Document, batch: int) -> None:
    for curve in (curve for curve in document["curves"] if curve["batch"] == batch and curve["seconds"]):
        color, name = (BLUE, "with the cache") if curve["cached"] else (ORANGE, "without")
        axis.plot(range(1, len(curve["seconds"]) + 1), curve["seconds"], color=color, label=name)
        points = [r for r in document["rows"] if r["batch"] == batch and (r["cached"] == "on") == curve["cached"]]
        axis.plot(column(points, "new"), column(points, "seconds"), "o", color=color)
    for crossover in (c for c in document["crossovers"] if c["batch"] == batch):
        label = f"the cache is faster from {crossover['new']} on ({crossover['source']})"
        axis.axvline(crossover["new"], color=GREY, linewidth=1.2, linestyle="--", label=label)
    axis.set(xscale="log", yscale="log", xlabel="new tokens of each sequence", title=f"batch {batch}")
    longest = max((len(curve["seconds"]) for curve in document["curves"]), default=1)
    plain_ticks(axis.xaxis, [2**power for power in range(longest.bit_length())])
    plain_ticks(axis.yaxis)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


def draw_chunk(document: Document) -> None:
    rows = document["rows"]
    _, (prefill, stall) = pyplot.subplots(1, 2, figsize=(10, 4.2))
    chunks = column(rows, "chunk")
    prefill.plot(chunks, column(rows, "prefill_seconds"), "o-", color=BLUE)
    prefill.set(title="What chunks cost the long prompt", ylabel="time to its first token [s]")
    prefill.set_ylim(bottom=0)
    stall.plot(chunks, column(rows, "stall_seconds", 1e3), "o-", color=ORANGE, label="longest stall meanwhile")
    stall.plot(chunks, column(rows, "decode_seconds", 1e3), "o--", color=GREY, label="median without the prompt")
    stall.set(title="What they save those who decode", ylabel="time between two tokens of a user [ms]", yscale="log")
    plain_ticks(stall.yaxis)
    stall.legend()
    for axis in (prefill, stall):
        axis.set(xlabel="chunk [prompt tokens a step]", xscale="log")
        plain_ticks(axis.xaxis, chunks)
    pyplot.suptitle(f"A prompt of {document['prompt']} tokens comes while {document['users']} users decode")


def draw_arrival(document: Document) -> None:
    _, axes = pyplot.subplots(1, 3, figsize=(13.5, 4.4))
    names = {
        "static": ("static batches", ORANGE),
        "continuous": ("continuous, whole prompts", BLUE),
        "chunked": (f"continuous, chunks of {document['chunk']}", GREEN),
    }
    for schedule, (name, color) in names.items():
        rows = [row for row in document["rows"] if row["schedule"] == schedule]
        axes[0].plot(column(rows, "rate"), column(rows, "tokens_per_second"), "o-", color=color, label=name)
        for axis, what in ((axes[1], "first_token"), (axes[2], "inter_token")):
            draw_percentiles(axis, rows, what, color)
    rates = sorted({row["rate"] for row in document["rows"]})
    axes[0].plot(rates, [rate * document["new"] for rate in rates], ":", color=GREY, label="offered")
    most = max(column(document["rows"], "tokens_per_second"))
    axes[0].set(title="Throughput", ylabel="throughput [tokens/s]", ylim=(0, 1.25 * most))
    axes[1].set(title="Time to first token", ylabel="time from arrival [ms]", yscale="log")
    axes[2].set(title="Time between tokens", ylabel="time between two tokens of a request [ms]", yscale="log")
    for axis in axes[1:]:
        plain_ticks(axis.yaxis)
        axis.plot([], [], "o-", color=GREY, label="p50")
        axis.plot([], [], "^--", color=GREY, label="p99")
        axis.legend(loc="upper left")
    for axis in axes:
        axis.set(xlabel="arrivals [requests/s]", xscale="log")
        plain_ticks(axis.xaxis, rates)
    axes[0].legend(loc="upper left", fontsize=9)
    pyplot.suptitle(
        f"Poisson arrivals: prompts of {document['prompt']} tokens, {document['new']} new ones, "
        f"at most {document['running']} together"
    )


def draw_percentiles(axis: Any, rows: list[Document], what: str, color: str) -> None:
    for percentile, style in (("p50", "o-"), ("p99", "^--")):
        name = f"{what}_{percentile}_seconds"
        measured = [row for row in rows if row[name] is not None]
        axis.plot(column(measured, "rate"), column(measured, name, 1e3), style, color=color)


def draw_sharing(document: Document) -> None:
    rows = document["rows"]
    _, (blocks, times) = pyplot.subplots(1, 2, figsize=(10, 4.2))
    sequences = column(rows, "sequences")
    blocks.plot(sequences, column(rows, "unshared_blocks"), "o-", color=ORANGE, label="without sharing")
    blocks.plot(sequences, column(rows, "shared_blocks"), "o-", color=BLUE, label="shared")
    blocks.set(title="Memory", ylabel="blocks of 16 positions in use")
    blocks.set_ylim(bottom=0)
    for kind, color, name in (("unshared", ORANGE, "without sharing"), ("shared", BLUE, "shared")):
        median = column(rows, f"{kind}_first_token_median_seconds", 1e3)
        most = column(rows, f"{kind}_first_token_most_seconds", 1e3)
        times.plot(sequences, median, "o-", color=color, label=f"{name}, median")
        times.plot(sequences, most, "^--", color=color, label=f"{name}, last")
    times.set(title="Time to first token of those that come later", ylabel="time from arrival [ms]", yscale="log")
    plain_ticks(times.yaxis)
    for axis in (blocks, times):
        axis.set(xlabel="sequences", xscale="log")
        plain_ticks(axis.xaxis, sequences)
        axis.legend(loc="upper left")
    pyplot.suptitle(f"{document['prompt']} tokens in common, {document['own']} of each one's own")


def draw_speculation(document: Document) -> None:
    rows = document["rows"]
    _, (speed, right) = pyplot.subplots(1, 2, figsize=(10, 4.2))
    names = {"ngram": ("prompt lookup", BLUE), "draft": ("draft model", ORANGE)}
    texts = list(dict.fromkeys(row["text"] for row in rows))
    kinds = [kind for kind in names if any(row["guesses"] == kind for row in rows)]
    width = 0.7 / max(len(kinds), 1)
    for i, kind in enumerate(kinds):
        name, color = names[kind]
        own = [row for row in rows if row["guesses"] == kind]
        at = [texts.index(row["text"]) + (i - (len(kinds) - 1) / 2) * width for row in own]
        shares = [100 * row["accepted"] / row["drafted"] if row["drafted"] else 0 for row in own]
        counts = [f"{row['accepted']} of {row['drafted']}" for row in own]
        bars = speed.bar(at, column(own, "speedup"), 0.9 * width, color=color, label=name)
        speed.bar_label(bars, fmt="%.2f", padding=2)
        right.bar_label(right.bar(at, shares, 0.9 * width, color=color, label=name), counts, padding=2)
    speed.axhline(1, color=GREY, linewidth=1.2, linestyle="--")
    speed.set(title="Speed", ylabel="times as fast as without guesses")
    right.set(title="Right guesses", ylabel="share of all guesses [%]", ylim=(0, 110))
    for axis in (speed, right):
        axis.set_xticks(range(len(texts)), [f"{text} text" for text in texts])
        axis.grid(visible=False, axis="x")
        axis.margins(y=0.15)
    speed.legend()
    pyplot.suptitle(f"Answers of at most {document['new']} tokens")


DRAWINGS: dict[str, Callable[[Document], None]] = {
    "cache": draw_cache,
    "chunk": draw_chunk,
    "arrival": draw_arrival,
    "sharing": draw_sharing,
    "speculation": draw_speculation,
}


def draw(document: Document, out: str) -> None:
    """Draws one document into a file. ValueError for one of another study."""
    if document.get("study") not in DRAWINGS:
        raise ValueError(f"there is no drawing of the study {document.get('study')!r}")
    with pyplot.rc_context(STYLE):
        DRAWINGS[document["study"]](document)
        pyplot.tight_layout()
        svg = {"Date": None} if out.endswith(".svg") else {}
        pyplot.savefig(out, dpi=110, metadata=svg)
        pyplot.close()


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:  # that all that is needed is there
        return 0
    if len(arguments) != 2:
        print("usage: python3 -m kvasir.plots JSONFILE OUTFILE", file=sys.stderr)
        return 2
    with open(arguments[0], encoding="utf-8") as file:
        draw(json.load(file), arguments[1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
