"""A real Prometheus that scrapes with our alert rules; and what our files ask of it."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fairlead.host.process import free_port

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "deploy" / "chart" / "fairlead" / "files"
ALERTS, DASHBOARDS = FILES / "alerts.yaml", sorted((FILES / "dashboards").glob("*.json"))
VERSION_MIN = (2, 40)
"""Debian 12 has 2.42; older ones know less of the query language."""
_WORDS = {"by", "without", "on", "ignoring", "and", "or", "unless", "group_left", "group_right"}


def missing_prometheus() -> str | None:
    """None where both programs are there and new enough."""
    cure = "apt-get install prometheus"
    for name in ("prometheus", "promtool"):
        path = shutil.which(name)
        if path is None:
            return f"{name} is not on PATH ({cure})"
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"version (\d+)\.(\d+)", done.stdout + done.stderr)
        if found is None or (int(found[1]), int(found[2])) < VERSION_MIN:
            return f"{name} is older than {VERSION_MIN} ({cure})"
    return None


def rules() -> list[dict[str, Any]]:
    """Every alert rule."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panel_expressions() -> dict[str, str]:
    """Every expression of every panel, by where it stands."""
    return {
        f"{path.stem}: {panel['title']} {target['refId']}": target["expr"]
        for path in DASHBOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
    }


def metrics_in(expression: str) -> set[str]:
    """Names of metrics: what is neither a label, a function nor a word of the language."""
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", expression)
    text = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", "", text)
    names = re.findall(r"[a-zA-Z_:][\w:]*(?!\s*\()\b", text)
    functions = set(re.findall(r"([a-zA-Z_]\w*)\s*\(", text))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names} - functions - _WORDS


class Prometheus:
    """Scrapes four times a second, unless a further job says otherwise."""

    def __init__(
        self, folder: Path, targets: Mapping[str, str], jobs: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.port = free_port()
        folder.mkdir(exist_ok=True)
        self._log = folder / "prometheus.log"
        config = {
            "global": {
                "scrape_interval": "250ms",
                "scrape_timeout": "250ms",
                "evaluation_interval": "250ms",
            },
            "rule_files": [str(ALERTS)],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]}
                for job, target in targets.items()
            ]
            + list(jobs),
        }
        (folder / "prometheus.yaml").write_text(json.dumps(config))  # JSON is YAML
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer; a query that Prometheus refuses is a failure."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as reply:
            answer = json.loads(reply.read())
        assert answer["status"] == "success", answer
        return answer["data"]

    def metadata(self) -> dict[str, dict[str, str]]:
        """Type and help of what was scraped, by the names of the samples: agents answer in
        OpenMetrics, where a counter's name has no ending."""
        found = {}
        for name, (facts, *_) in self.ask("metadata").items():
            counts = facts["type"] == "counter" and not name.endswith("_total")
            found[f"{name}_total" if counts else name] = facts
        return found

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def until(self, what: str, holds: Callable[[], object], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self._log.read_text()
            try:
                if holds():
                    return
            except OSError:
                pass  # it does not listen yet
            time.sleep(0.05)  # polling interval, not synchronisation
        raise AssertionError(f"never {what}: {self._log.read_text()[-2000:]}")

    def until_answered(self, expressions: dict[str, str]) -> None:
        """Each had a sample. A scrape that a busy machine delays fails, and its series are gone
        until the next one: so they are asked again, not all at one moment."""
        waiting = dict(expressions)

        def ask() -> bool:
            for where, expression in list(waiting.items()):
                if self.query(expression.replace("$__rate_interval", "1m")):
                    del waiting[where]
            return not waiting

        try:
            self.until("every expression is answered", ask)
        except AssertionError as error:
            raise AssertionError(f"no sample of {sorted(waiting)}") from error

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
