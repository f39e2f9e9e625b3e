"""Reads the pages of README and docs: their blocks, their commands, and the outputs that they print."""

import re
import subprocess

COMMANDS = ("sh", "shell", "bash", "console")
PROGRAMS = r"^(sluicegate|cargo|curl|redis-cli|psql|kubectl|helm|docker|envoy|nginx|grpcurl) [a-z-]"


class Block:
    """A code block, or with the language `#` a heading, or with the language `inline` a command in a sentence."""

    def __init__(self, page, line, language, text):
        self.page, self.line, self.language, self.text = page, line, language, text

    def has_commands(self):
        return self.language in (*COMMANDS, "inline") or self.has_prompts()

    def has_prompts(self):
        return self.language in ("console", "text") and self.text.startswith("$ ")

    def is_output(self):
        return self.language in ("text", "json") and not self.has_prompts()


class Command:
    """`printed` is the output that the page shows for the block of this command. `is_last` of the block."""

    def __init__(self, block, text, printed, is_last):
        self.block, self.text, self.printed, self.is_last = block, text, printed, is_last
        self.is_json, self.step = False, {}

    def place(self):
        return f"{self.block.page}:{self.block.line}"


def blocks_of(page, text):
    """The blocks of a page in their order."""
    found, start, fence, lines = [], 0, None, []
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r"( *)```(\w*)", line)
        if mark and fence is None:
            start, fence, lines = number + 1, mark, []
        elif mark:
            found.append(Block(page, start, fence[2], "\n".join(lines)))
            fence = None
        elif fence:
            lines.append(line.removeprefix(fence[1]))
        elif line.startswith("#"):
            found.append(Block(page, number, "#", ""))
        else:
            found += [Block(page, number, "inline", said) for said in re.findall(r"`(sluicegate show [^`…]+)`", line)]
    return found


def commands_of(blocks):
    """The commands in their order."""
    found = []
    for block, following in zip(blocks, [*blocks[1:], None]):
        if block.has_prompts():
            parts = [part.partition("\n") for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]]
            found += [Command(block, text, printed, True) for text, _, printed in parts]
        elif block.has_commands():
            of_block = [Command(block, text, None, False) for text in split(block.text)]
            for command in of_block:
                command.is_last = command is of_block[-1]
                if block.language != "inline" and following and following.is_output():
                    command.printed, command.is_json = following.text, following.language == "json"
            found += of_block
    return found


def split(text):
    """The commands of a block. One that bash cannot parse goes on in the next line."""
    found, command = [], ""
    for line in text.split("\n"):
        command = f"{command}\n{line}" if command else line
        if command.strip() and not command.endswith("\\") and is_complete(command):
            found.append(command)
            command = ""
    return found + [command] if command.strip() else found


def is_complete(command):
    return subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode == 0


def last_above(command, blocks, start, words):
    """The last block above the command with such a line, and with these words unless they are `True`. Else `None`."""
    fits = [b.text + "\n" for b in blocks if b.line < command.block.line and re.search(start, b.text, re.M)]
    return next((text for text in reversed(fits) if words is True or words in text), None)


def read(page, text, table):
    """The blocks and commands of a page with their steps, and its mistakes."""
    blocks = blocks_of(page, text)
    commands, steps = commands_of(blocks), table["page"].get(page, {}).get("step", [])
    mistakes = [f"{page}:{b.line}: a command in a block `{b.language}`; write it in a block `sh`"
                for b in blocks if not b.has_commands() and re.search(PROGRAMS, b.text, re.M)]
    used = set()
    for command in commands:
        fits = [number for number, step in enumerate(steps) if command.text.startswith(step["command"])]
        if fits:
            number = next((one for one in fits if one not in used), fits[-1])
            command.step = steps[number]
            used.add(number)
    unused = [step["command"] for number, step in enumerate(steps) if number not in used]
    mistakes += [f"pages.toml: {page} has no command `{text}`" for text in unused]
    return blocks, commands, mistakes
