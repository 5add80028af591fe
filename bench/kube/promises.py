"""What `bench.kube` promises, judged on the medians of its runs."""

from bench.kube.load import CLASSES
from bench.side_by_side import Figures, Line, Verdict, as_lines

LABELS = {
    "kueue-limited": "Kueue, QPS 50",
    "fairlead-limited": "Fairlead, QPS 50",
    "kueue": "Kueue, no limit",
    "fairlead": "Fairlead, no limit",
}
PAIRS = (("fairlead-limited", "kueue-limited"), ("fairlead", "kueue"))
RATIO, MEMORY_MIB = 1.3, 130


def judge(document: Line) -> list[Line]:
    """Each promise for each of our arms that has a peer, from the runs alone."""
    figures, made = Figures(document["runs"]), list[Verdict]()
    for scenario in document["scenarios"]:
        for ours, theirs in PAIRS:
            if not {ours, theirs} <= set(figures.arms(scenario)):
                continue
            mine, other = (figures.of(scenario, arm, "per_s") for arm in (ours, theirs))
            named = f"{LABELS[ours]}; {scenario}"
            ratio = f"{mine:.1f} / {other:.1f} = {mine / other:.2f}"
            made.append(
                Verdict(
                    f"at least {RATIO} × Kueue's workloads/s", named, mine >= RATIO * other, ratio
                )
            )
            means = [
                tuple(
                    figures.of(scenario, arm, "mean_s", "latency", of.name) or 0.0
                    for arm in (ours, theirs)
                )
                for of in CLASSES
            ]
            rows = [
                f"{of.name} {a:.1f} < {b:.1f} s" for of, (a, b) in zip(CLASSES, means, strict=True)
            ]
            made.append(
                Verdict(
                    "lower mean admission in every class",
                    named,
                    all(a < b for a, b in means),
                    ", ".join(rows),
                )
            )
            peak = max(figures.values(scenario, ours, "peak_mib", "processes", "controller"))
            made.append(
                Verdict(
                    f"controller under {MEMORY_MIB} MiB",
                    named,
                    peak < MEMORY_MIB,
                    f"{peak:.0f} MiB",
                )
            )
    return as_lines(made)
