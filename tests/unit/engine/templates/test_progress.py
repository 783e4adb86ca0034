from __future__ import annotations

import io
import itertools

from sandyard.engine.templates.progress import MmdebstrapProgress, ProgressBar, ProgressLines, StepProgress, make_report


def apt_run(packages: int) -> list[str]:
    """Return the recorded output of one apt run of mmdebstrap."""
    lines = [
        f"0 upgraded, {packages} newly installed, 0 to remove and 0 not upgraded.",
        "Need to get 36.2 MB of archives.",
    ]
    lines += [
        f"Get:{n} http://mirror.example bookworm/main arm64 p{n} arm64 1.0 [1 kB]" for n in range(1, packages + 1)
    ]
    return lines


def dpkg_run(packages: int) -> list[str]:
    lines = [f"Unpacking p{n}:arm64 (1.0) ..." for n in range(1, packages + 1)]
    return lines + [f"Setting up p{n}:arm64 (1.0) ..." for n in range(1, packages + 1)]


LOG = [
    "I: chroot architecture arm64 is equal to the host's architecture",
    "I: running apt-get update...",
    "Get:1 http://mirror.example bookworm InRelease [151 kB]",
    "I: downloading packages with apt...",
    *apt_run(10),
    "I: extracting archives...",
    "I: installing essential packages...",
    *dpkg_run(10),
    "I: installing remaining packages inside the chroot...",
    *apt_run(20),
    *dpkg_run(20),
    "I: running --customize-hook in shell: sh -c 'x' exec /root",
    "I: cleaning package lists and apt cache...",
]


def test_the_fraction_only_rises_and_covers_the_whole_build() -> None:
    updates: list[tuple[float, str]] = []
    progress = MmdebstrapProgress(lambda fraction, doing: updates.append((fraction, doing)))
    for line in LOG:
        progress.feed(line)
    fractions = [fraction for fraction, _ in updates]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0.0
    assert 0.95 < fractions[-1] < 1.0
    assert len(set(fractions)) > 60, "every downloaded, unpacked and configured package moves the bar"
    assert max(b - a for a, b in itertools.pairwise(fractions)) < 0.08, "no package makes the bar jump"
    assert "downloading packages 7/20" in [doing for _, doing in updates]


def test_unknown_lines_are_ignored() -> None:
    updates: list[float] = []
    progress = MmdebstrapProgress(lambda fraction, _: updates.append(fraction))
    for line in ("", "Get:nothing", "I: something new in mmdebstrap 2", "Selecting previously unselected package x."):
        progress.feed(line)
    assert not updates


def test_a_pipe_gets_a_line_per_ten_percent_and_a_terminal_gets_a_bar() -> None:
    stream = io.StringIO()
    report = make_report("base", stream)
    assert isinstance(report, ProgressLines)
    for percent in range(101):
        report.update(percent / 100, f"step {percent}")
    report.finish("done")
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["base: 0% step 0", "base: 10% step 10"]
    assert len(lines) == 12

    screen = io.StringIO()
    bar = ProgressBar("base", screen)
    bar.update(0.5, "half")
    bar.finish("built")
    assert "50%" in screen.getvalue()
    assert "half" in screen.getvalue()
    assert screen.getvalue().endswith("\n")
    assert "base: built" in screen.getvalue().rpartition("\r")[2]


def test_steps_of_a_script_advance_with_apt() -> None:
    reported: list[tuple[float, str]] = []
    progress = StepProgress(lambda fraction, doing: reported.append((round(fraction, 3), doing)))
    lists = "Get:1 http://mirror.example bookworm InRelease [151 kB]"
    log = ["step 0.02 reading package lists", lists, "step 0.1-0.3 downloading", *apt_run(4)]
    log += ["step 0.4-0.8 installing", *apt_run(4)[:1], *dpkg_run(4), "step 0.9 trying it out", "anything else", lists]
    for line in log:
        progress.feed(line + "\n")
    assert [fraction for fraction, doing in reported if doing == "downloading"] == [0.1, 0.15, 0.2, 0.25, 0.3]
    assert [fraction for fraction, doing in reported if doing == "installing"][::4] == [0.4, 0.6, 0.8]
    assert (reported[0], reported[1][0], reported[-1]) == ((0.02, "reading package lists"), 0.1, (0.9, "trying it out"))
