#!/usr/bin/python3
"""Runs the program of a systemd unit under the restrictions of the unit, without systemd.

  unshare --mount chroot ROOT unit.py UNIT

The caller makes the mount namespace. Needs root, `systemd-analyze` and Debian's python3-seccomp.

Guarantees:
- The program runs as a user without name, without capabilities, with one writable directory.
- A system call that the unit forbids fails as under systemd: SystemCallFilter, RestrictAddressFamilies,
  MemoryDenyWriteExecute.
- A setting of the unit that is in neither table below is an error.

Not covered:
- The settings in UNTRIED.
- Restarts, timeouts and the journal.
"""

import ctypes
import errno
import os
import resource
import shlex
import stat
import subprocess
import sys

import seccomp

# From the range that systemd takes users of DynamicUser from.
UID = 61999
PR_CAPBSET_DROP, LAST_CAPABILITY = 24, 40
PROT_WRITE, PROT_EXEC = 2, 4
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}

TRIED = {
    "ExecStart", "DynamicUser", "StateDirectory", "StateDirectoryMode", "WorkingDirectory", "UMask", "ProtectSystem",
    "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectProc", "ProtectKernelTunables", "ProtectControlGroups",
    "CapabilityBoundingSet", "NoNewPrivileges", "RestrictAddressFamilies", "MemoryDenyWriteExecute",
    "SystemCallFilter", "SystemCallErrorNumber", "LimitNOFILE",
}
UNTRIED = {
    "Type", "Restart", "RestartSec", "TimeoutStopSec", "ProtectKernelModules", "ProtectKernelLogs", "ProtectClock",
    "ProtectHostname", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "LockPersonality",
    "SystemCallArchitectures",
}


def main():
    unit = read(sys.argv[1])
    unknown = set(unit) - TRIED - UNTRIED
    if unknown:
        sys.exit(f"{sys.argv[1]}: neither tried nor listed as untried: {', '.join(sorted(unknown))}")
    state = make_state_directory(unit)
    restrict_files(state)
    os.umask(int(unit["UMask"][0], 8))
    os.chdir(unit["WorkingDirectory"][0])
    raise_open_files(int(unit["LimitNOFILE"][0]))
    drop_privileges()
    forbid_calls(unit).load()
    command = shlex.split(unit["ExecStart"][0])
    os.execve(command[0], command, {"PATH": "/usr/bin:/bin", "STATE_DIRECTORY": state, "LANG": "C.UTF-8"})


def read(path):
    """Returns the settings of the section Service: name to values, in order."""
    settings, section = {}, None
    with open(path, encoding="utf-8") as file:
        for line in map(str.strip, file):
            if line.startswith("["):
                section = line
            elif section == "[Service]" and line and not line.startswith("#"):
                name, value = line.split("=", 1)
                settings.setdefault(name, []).append(value)
    return settings


def make_state_directory(unit):
    """Makes /var/lib/private/NAME and the link /var/lib/NAME, as for DynamicUser."""
    name = unit["StateDirectory"][0]
    private, link = f"/var/lib/private/{name}", f"/var/lib/{name}"
    os.makedirs("/var/lib/private", mode=0o700, exist_ok=True)
    os.makedirs(private, exist_ok=True)
    os.chmod(private, int(unit["StateDirectoryMode"][0], 8))
    os.chown(private, UID, UID)
    if not os.path.islink(link):
        os.symlink(f"private/{name}", link)
    return link


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


def restrict_files(state):
    """Mounts the file system as ProtectSystem=strict, ProtectHome, PrivateTmp and PrivateDevices do."""
    private = os.path.realpath(state)
    # The way to the directory is closed for others; only the unit sees it.
    os.makedirs("/run/unit", exist_ok=True)
    mount("--bind", private, "/run/unit")
    mount("-t", "tmpfs", "-o", "mode=755", "private", "/var/lib/private")
    os.makedirs(private)
    mount("--bind", "/run/unit", private)
    mount("-t", "tmpfs", "-o", "mode=0", "hidden", "/run/unit")
    for path in filter(os.path.isdir, ["/home", "/root", "/run/user"]):
        mount("-t", "tmpfs", "-o", "ro,mode=0", "home", path)
    make_devices()
    mount("-t", "proc", "-o", "hidepid=2", "proc", "/proc")
    mount("--bind", "/proc/sys", "/proc/sys")
    for path in mount_points():
        if path not in (private, "/dev"):
            mount("-o", "remount,bind,ro", path)
    for path in ["/tmp", "/var/tmp"]:
        mount("-t", "tmpfs", "-o", "mode=1777", "tmp", path)


def mount_points():
    """The mount points, without those below a mounted /dev. A process may write to its own files in /proc."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        points = {line.split()[4] for line in file}
    return sorted(point for point in points if point != "/proc" and os.path.ismount(point))


def make_devices():
    """A /dev with pseudo devices only."""
    mount("-t", "tmpfs", "-o", "mode=755,nosuid,noexec", "dev", "/dev")
    mask = os.umask(0)
    for name, (major, minor) in DEVICES.items():
        os.mknod(f"/dev/{name}", 0o666 | stat.S_IFCHR, os.makedev(major, minor))
    os.umask(mask)


def raise_open_files(wanted):
    """Without CAP_SYS_RESOURCE, the limit of the caller is the most."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    number = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def drop_privileges():
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(LAST_CAPABILITY + 1):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), f"PR_CAPBSET_DROP of {capability}")
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)


def forbid_calls(unit):
    """The seccomp filter of the unit. Loading it sets NoNewPrivileges."""
    error = seccomp.ERRNO(getattr(errno, unit["SystemCallErrorNumber"][0]))
    rules = seccomp.SyscallFilter(error)
    for call in allowed_calls(unit["SystemCallFilter"]):
        if call == "socket":
            allow_families(rules, unit["RestrictAddressFamilies"][0].split())
        elif call in ("mmap", "mprotect", "pkey_mprotect"):
            allow_unless_writable_code(rules, call)
        else:
            allow(rules, call)
    return rules


def allowed_calls(filters):
    calls = set()
    for line in filters:
        names = {call for word in line.removeprefix("~").split() for call in expand(word)}
        calls = calls - names if line.startswith("~") else calls | names
    return calls


def expand(word):
    """The calls of a group such as @system-service, from systemd itself."""
    if not word.startswith("@"):
        return {word}
    command = ["systemd-analyze", "syscall-filter", word]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[1:]
    words = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return {call for inner in words for call in expand(inner)}


def allow(rules, call, *conditions):
    try:
        rules.add_rule(seccomp.ALLOW, call, *conditions)
    except (RuntimeError, OSError):
        # A call of another architecture.
        pass


def allow_families(rules, names):
    for family in (FAMILIES[name] for name in names):
        allow(rules, "socket", seccomp.Arg(0, seccomp.EQ, family))


def allow_unless_writable_code(rules, call):
    """Memory becomes writable or executable, not both; and mapped memory never becomes executable."""
    forbidden = PROT_WRITE | PROT_EXEC if call == "mmap" else PROT_EXEC
    for bits in (0, PROT_WRITE, PROT_EXEC):
        if bits & forbidden != forbidden:
            allow(rules, call, seccomp.Arg(2, seccomp.MASKED_EQ, PROT_WRITE | PROT_EXEC, bits))


main()
