#!/usr/bin/env python3
"""Runs the commands of README and docs against a service, and compares their outputs. walk.sh calls it.

  scripts/walk/walk.py CHECKOUT PROGRAM [PAGE…]

A command is a line of a block `sh`, `shell` or `console`, a line after `$ ` in a block `text`, or a `sluicegate
show …` within a sentence. Each one runs, unless a pattern in pages.toml gives the reason why not. The expected output
is the block `text` or `json` that follows, or in pages.toml. It is an error if a command has none.

Each page has a directory of its own with `config`, `deploy` and the files of scripts/walk/files, and a service of its
own: `config/start.yaml`, with counters in memory and an admin token. A page in pages.toml can have other limits and
settings: the blocks of the page itself. A command that starts the service replaces it. Commands get the token only if
their page says how to set it.

Exits with 1 if an output differs, if a block of another language has a command, or if an entry of pages.toml matches
no command.
"""

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request

from compare import json_like, like
from pages import last_above, read

HERE = os.path.dirname(os.path.abspath(__file__))
# A bound for a machine that runs other programs, not a measure.
WAIT_SECONDS = 120
TOKEN = "sluicegate-admin-token"
# A page with one of them names the variable, or links to a page that sets it.
SAYS_THE_TOKEN = ("SLUICEGATE_ADMIN_TOKEN", "#tokens-of-the-admin-port", "#first-commands")
SERVES = r"([A-Z_]+=\S+ )*sluicegate (serve|ratelimit) (?!.*--print-config)"


class Shell:
    """The directory and the programs of one page."""

    def __init__(self, directory, environment, table):
        self.directory, self.environment, self.table = directory, environment, table
        self.exports, self.programs, self.failures = [], [], []

    def here(self, text):
        """The text with the hosts and paths of the pages replaced by those of this machine."""
        for name, at in self.table["here"].items():
            text = text.replace(name, at.replace("HERE", self.directory))
        return text.replace("cargo run --release -- ", "sluicegate ")

    def write(self, name, text):
        with open(f"{self.directory}/{name}", "w", encoding="utf-8") as file:
            file.write(self.here(text))

    def said(self, name):
        with open(f"{self.directory}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()

    def spawn(self, text, name, is_program=True):
        """Starts a command, with its output in NAME.out. A program also has NAME.err."""
        script = "\n".join([*self.exports, f"exec env {text}" if is_program else text])
        out = open(f"{self.directory}/{name}.out", "w", encoding="utf-8")
        err = open(f"{self.directory}/{name}.err", "w", encoding="utf-8") if is_program else subprocess.STDOUT
        return subprocess.Popen(["bash", "-c", script], cwd=self.directory, env=self.environment, stdout=out,
                                stderr=err, stdin=subprocess.DEVNULL, start_new_session=True)

    def run(self, text):
        """The exit code and the output of a command. The code is 124 after the bound."""
        process = self.spawn(text, "command", is_program=False)
        try:
            code = process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = 124
        return code, self.said("command.out")

    def port_of(self, text):
        """The port of a program that runs until the end of its page, or `None`."""
        return next((port for start, port in self.table["background"].items() if text.startswith(start)), None)

    def helper(self, text):
        """Runs a command that must succeed, or starts a program."""
        port, text = self.port_of(text), self.here(text)
        if text.startswith("export "):
            self.exports.append(text)
        if port:
            name = f"program{len(self.programs)}"
            self.programs.append(self.spawn(text, name))
            text = f"until (: < /dev/tcp/127.0.0.1/{port}) 2>&-; do sleep 0.1; done; cat {name}.err"
        code, got = self.run(text)
        if code:
            self.failures.append(f"{self.directory}: `{text}` exits with {code}\n{got}")

    def end(self):
        for program in reversed(self.programs):
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()


class Service:
    """The service of one page."""

    def __init__(self, shell):
        self.shell, self.process, self.by_page, self.started = shell, None, False, None

    def start(self, command, blocks, options):
        """Starts the service for this command, unless the page has started one, or the same one runs."""
        limits = options.get("limits") and last_above(command, blocks, "^domain:", options["limits"])
        settings = options.get("settings") and last_above(command, blocks, "^# server.yaml", options["settings"])
        arguments = options.get("service", "serve --settings config/start.yaml")
        if settings:
            arguments = f"serve --settings server.yaml --limits-paths config/limits --admin-token-file {TOKEN}"
        if self.by_page and "service" in command.step:
            self.stop()
            self.by_page, self.started = False, None
        if self.by_page or self.started == (arguments, limits, settings):
            return
        self.started = (arguments, limits, settings)
        config = f"{self.shell.directory}/config/limits"
        shutil.rmtree(config)
        shutil.copytree(f"{self.shell.directory}/shipped/limits", config)
        if limits:
            os.remove(f"{config}/example.yaml")
            self.shell.write("config/limits/shop.yaml", limits)
        self.shell.write("server.yaml", settings or "")
        self.stop()
        if arguments:
            self.serve(f"sluicegate {arguments}")

    def serve(self, text):
        """Starts the service, and returns whether it gets ready."""
        self.stop()
        self.process = self.shell.spawn(text, "service")
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen("http://127.0.0.1:8080/readyz", timeout=10):
                    if "\nready\n" in self.shell.said("service.out"):
                        return True
            except OSError:
                pass
            time.sleep(0.1)
        self.shell.failures.append(f"{self.shell.directory}: `{text}` is not ready\n{self.shell.said('service.err')}")
        return False

    def stop(self):
        """Ends the service. One that the page started must end well."""
        if self.process:
            self.process.send_signal(signal.SIGTERM if self.by_page else signal.SIGKILL)
            code = self.process.wait(WAIT_SECONDS)
            if self.by_page and code:
                text = f"after SIGTERM, the service exits with {code}\n{self.shell.said('service.err')}"
                self.shell.failures.append(f"{self.shell.directory}: {text}")
        self.process = None


class Walk:
    """`rows` is the table of all commands, and `failures` has the details."""

    def __init__(self, checkout, program, table, home):
        self.checkout, self.table, self.home = checkout, table, home
        self.rows, self.failures, self.ran, self.skipped = [], [], 0, 0
        os.mkdir(f"{home}/bin")
        os.symlink(program, f"{home}/bin/sluicegate")
        with open(f"{home}/.curlrc", "w", encoding="utf-8") as file:
            file.write("fail-with-body\n")

    def page(self, page, text, blocks, commands):
        options, directory = self.table["page"].get(page, {}), f"{self.home}/{re.sub('[^a-z0-9]+', '-', page.lower())}"
        shutil.copytree(f"{HERE}/files", directory)
        for name, at in [("config", "config"), ("config", "shipped"), ("deploy", "deploy")]:
            shutil.copytree(f"{self.checkout}/{name}", f"{directory}/{at}")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICEGATE_", "OTEL_"))}
        token = {"SLUICEGATE_ADMIN_TOKEN_FILE": TOKEN} if any(words in text for words in SAYS_THE_TOKEN) else {}
        path = ":".join([f"{self.home}/bin", os.environ["PATH"], *glob.glob("/usr/lib/postgresql/*/bin")])
        page_file = f"{self.checkout}/{page}"
        shell = Shell(directory, {**kept, **token, "PATH": path, "HOME": self.home, "PAGE": page_file}, self.table)
        service, self.outputs = Service(shell), {}
        try:
            for line in options.get("before", []) if any(self.reason(one) is None for one in commands) else []:
                shell.helper(line)
            for command in commands:
                self.command(command, blocks, options, shell, service)
        finally:
            service.stop()
            shell.end()
            self.failures += shell.failures

    def local(self, text):
        """The command without the way into a pod or a container."""
        for pattern, instead in self.table["instead"].items():
            text = re.sub(pattern, instead, text)
        return text

    def reason(self, command):
        """Why the command does not run here, or `None`."""
        text, options = self.local(command.text), self.table["page"].get(command.block.page, {})
        if options.get("root") and os.geteuid():
            return "needs root"
        return next((why for pattern, why in self.table["not_run"].items() if re.search(pattern, text)), None)

    def command(self, command, blocks, options, shell, service):
        reason, step, text = self.reason(command), command.step, shell.here(self.local(command.text))
        if reason:
            self.skipped += 1
            self.row(command, f"not run: {reason}")
            return
        self.ran += 1
        for old, new in step.get("replace", {}).items():
            text = text.replace(old, new)
        serves, is_helper = re.match(SERVES, text), text.startswith("export ") or shell.port_of(text)
        if not serves and not is_helper:
            service.start(command, blocks, {**options, **step})
        for line in step.get("before", []):
            shell.helper(line)
        if serves:
            got, service.by_page = "ready" if service.serve(text) else "not ready", True
            wanted = self.expected(command, shell)[0]
            self.report(command, shell, wanted or "ready", shell.said("service.out") if wanted else got)
        elif is_helper:
            shell.helper(text)
            self.row(command, "ok")
        else:
            self.compare(command, shell, text)
        for line, wanted in step.get("then", []):
            self.report(command, shell, wanted, shell.run(shell.here(line))[1], then=line)

    def expected(self, command, shell):
        """The output to compare, and whether it is that of the whole block."""
        step = command.step
        if "expect" in step:
            return shell.here(step["expect"]), False
        if command.printed is None or step.get("quiet"):
            text = shell.here(self.local(command.text))
            return next((out for pattern, out in self.table["output"].items() if re.search(pattern, text)), None), False
        if "lines" not in step and not command.is_last:
            return None, False
        first, last = step.get("lines", [0, None])
        return shell.here("\n".join(command.printed.split("\n")[first:last])), "lines" not in step

    def compare(self, command, shell, text):
        """Compares the output, or the outputs of the whole block after its last command."""
        wanted, is_whole = self.expected(command, shell)
        step, before, end = command.step, self.outputs.setdefault(command.block, []), time.monotonic() + WAIT_SECONDS
        equal = json_like if command.is_json and "expect" not in step else like
        while True:
            code, got = shell.run(text)
            all_got = "\n".join([*before, got.rstrip("\n")]) if is_whole else got
            fails = code != step.get("exit", 0 if wanted is None else code)
            same = not fails and (wanted is None or equal(wanted, all_got, step.get("numbers", False)))
            if same or not step.get("until") or time.monotonic() > end:
                break
            time.sleep(0.5)
        if wanted is None and command.printed is not None and not step.get("quiet"):
            before.append(got.rstrip("\n"))
        if wanted is command.printed is None and " > " not in text:
            wanted, all_got, same = "an output in pages.toml: `expect` or `output`", got, False
        elif wanted is None or fails:
            wanted, all_got = f"exit code {step.get('exit', 0)}", f"exit code {code}\n{got}"
        self.report(command, shell, wanted, all_got, same=same)

    def report(self, command, shell, wanted, got, then=None, same=None):
        if same is None:
            same = like(wanted, got, command.step.get("numbers", False))
        self.row(command, "ok" if same else "DIFFERS", then)
        if not same:
            log = shell.said("service.err")[-2000:] if os.path.exists(f"{shell.directory}/service.err") else ""
            place = f"{command.place()}: {then or command.text}"
            self.failures.append(f"{place}\n--- expected\n{wanted}\n--- got\n{got}\n--- log\n{log}")

    def row(self, command, outcome, then=None):
        text = re.sub(r"\s+", " ", then or command.text).replace("|", "\\|")
        self.rows.append(f"| {command.place()} | {'then ' if then else ''}`{text}` | {outcome} |")


def pages_of(checkout):
    listed = subprocess.check_output(["git", "-C", checkout, "ls-files", "README.md", "docs/*.md"], text=True)
    for page in listed.split():
        with open(f"{checkout}/{page}", encoding="utf-8") as file:
            yield page, file.read()


def main():
    checkout, program, only = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3:]
    with open(f"{HERE}/pages.toml", "rb") as file:
        table = tomllib.load(file)
    pages = {page: (text, *read(page, text, table)) for page, text in pages_of(checkout)}
    mistakes = [mistake for *_, found in pages.values() for mistake in found]
    mistakes += [f"pages.toml: there is no page {page}" for page in table["page"] if page not in pages]
    texts = [command.text for _, _, commands, _ in pages.values() for command in commands]
    patterns = [*table["not_run"], *table["instead"]]
    mistakes += [f"pages.toml: no command matches `{p}`" for p in patterns if not any(re.search(p, t) for t in texts)]
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o755)
        walk = Walk(checkout, program, table, home)
        for page, (text, blocks, commands, _) in pages.items():
            if commands and (not only or page in only):
                walk.page(page, text, blocks, commands)
    failures = mistakes + walk.failures
    print("| place | command | outcome |", "|---|---|---|", *walk.rows, sep="\n")
    print(f"\n{walk.ran} commands ran, {walk.skipped} did not, {len(failures)} failures", flush=True)
    print(*failures, sep="\n\n", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
