"""The part of scripts/peers that measures `willow memcached` beside memcached and Redis over TCP: gets of data in memory, and sets that are
durable when they are answered. The load is made here, and every answer is held against what it has to be.
"""
import contextlib
import os
import random
import select
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

# Longest time until a server accepts, and wait for an answer.
START_SECONDS_MAX = 30
# Longest wait for an answer.
ANSWER_SECONDS_MAX = 60


class Dialect:
    """How a server is asked, and how long its answers are: all keys and all values are of one length, so that answers need no parsing."""

    def __init__(self, is_redis, value_bytes):
        self.is_redis, self.value = is_redis, b"v" * value_bytes

    def request(self, mode, key):
        if self.is_redis:
            parts = [b"SET", key, self.value] if mode == "set" else [b"GET", key]
            return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        return b"set %b 0 0 %d\r\n%b\r\n" % (key, len(self.value), self.value) if mode == "set" else b"get %b\r\n" % key

    def answer(self, mode, key):
        if mode == "set":
            return b"+OK\r\n" if self.is_redis else b"STORED\r\n"
        if self.is_redis:
            return b"$%d\r\n%b\r\n" % (len(self.value), self.value)
        return b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (key, len(self.value), self.value)


def key_of(number):
    return b"key:%010d" % number


def load(peers, port, dialect, mode, options, numbers, seconds):
    """Connections with requests under way, as many in one piece as --pipeline says: requests a second, and the median latency of a piece in
    microseconds. Without `seconds`: each of `numbers` once. Every answer is held against what it has to be."""
    pieces = [numbers[at:at + options.pipeline] for at in range(0, len(numbers), options.pipeline)]
    asked = [b"".join(dialect.request(mode, key_of(number)) for number in piece) for piece in pieces]
    answers = [b"".join(dialect.answer(mode, key_of(number)) for number in piece) for piece in pieces]
    connections, waiting, latencies, done, at = {}, select.poll(), [], 0, 0
    began = time.perf_counter()

    def begin(descriptor):
        nonlocal at
        one = connections[descriptor]
        if at >= len(pieces) and not seconds:
            return
        one["piece"], one["got"], one["since"] = at % len(pieces), bytearray(), time.perf_counter()
        at += 1
        one["socket"].sendall(asked[one["piece"]])

    for _ in range(options.connections):
        opened = socket.create_connection(("127.0.0.1", port), START_SECONDS_MAX)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections[opened.fileno()] = {"socket": opened, "piece": None}
        waiting.register(opened, select.POLLIN)
        begin(opened.fileno())
    try:
        while any(one["piece"] is not None for one in connections.values()):
            ready = waiting.poll(ANSWER_SECONDS_MAX * 1000)
            if not ready:
                raise peers.Failed(f"no answer to a {mode} within {ANSWER_SECONDS_MAX} s")
            for descriptor, _ in ready:
                one = connections[descriptor]
                came = one["socket"].recv(1 << 18)
                if not came:
                    raise peers.Failed(f"the server has ended a connection amid a {mode}")
                if one["piece"] is None:
                    raise peers.Failed(f"the server says more than it was asked: {bytes(came[:100])!r}")
                one["got"] += came
                wanted = answers[one["piece"]]
                if len(one["got"]) < len(wanted) and wanted.startswith(one["got"][:32]):
                    continue
                if one["got"] != wanted:
                    raise peers.Failed(f"a {mode} was answered with {bytes(one['got'][:100])!r}")
                now = time.perf_counter()
                latencies.append(now - one["since"])
                done, one["piece"] = done + len(pieces[one["piece"]]), None
                if not seconds or now - began < seconds:
                    begin(descriptor)
    finally:
        for one in connections.values():
            one["socket"].close()
    return {"iops": done / (time.perf_counter() - began), "p50_us": statistics.median(latencies) * 1e6}


def answers_at(peers, target, port):
    """Waits until a server accepts."""
    end = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if target.process.poll() is not None or time.monotonic() > end:
                raise peers.Failed(f"{target.name} did not start: {target.last_words()}") from None
            time.sleep(0.05)


def pairs(options, peers):
    if min(options.connections, options.pipeline, options.keys, options.bytes) < 1:
        raise peers.Failed("--connections, --pipeline, --keys and --bytes must be at least 1")
    os.sched_setaffinity(0, [int(options.client_core)])
    keys = list(range(options.keys))
    with tempfile.TemporaryDirectory(prefix="willow-peers-", dir=options.folder) as folder, contextlib.ExitStack() as stack:
        folder = Path(folder)

        def start(name, command, **more):
            return stack.enter_context(peers.Target(command, options.target_core, folder / f"{name}.log", **more))

        def willow(name, *media):
            device = start(f"{name}-device", [options.willow, "serve", *media, "--size", "64M", "--kv-size",
                                              f"{options.mebibytes}M", "--listen", "127.0.0.1:0", "--socket", folder / f"{name}.socket"],
                           stdout=subprocess.PIPE)
            if not device.process.stdout.readline().startswith("ready "):
                raise peers.Failed(f"willow serve did not start: {device.last_words()}")
            port = peers.free_port()
            front = start(name, [options.willow, "memcached", "--target", folder / f"{name}.socket", "--listen", f"127.0.0.1:{port}"])
            answers_at(peers, front, port)
            return port, Dialect(False, options.bytes), [device, front]

        def redis(name, *more):
            port = peers.free_port()
            target = start(name, [options.redis, "--port", port, "--bind", "127.0.0.1", "--dir", folder, "--save", "", *more])
            answers_at(peers, target, port)
            return port, Dialect(True, options.bytes), [target]

        def memcached():
            port = peers.free_port()
            # It does not run as root unless it is told who to be.
            target = start("memcached", [options.memcached, "-l", "127.0.0.1", "-p", port, "-t", 1, "-m", options.mebibytes, "-u", "nobody",
                                         "-c", options.connections + 64])
            answers_at(peers, target, port)
            return port, Dialect(False, options.bytes), [target]

        ends = {"get": {"Willow": willow("memory", "--ram")}, "set": {"Willow": willow("durable", "--media", folder / "media")}}
        if options.memcached:
            ends["get"]["memcached"] = memcached()
        if options.redis:
            ends["get"]["Redis"] = redis("redis")
            ends["set"]["Redis, appendfsync always"] = redis("redis-durable", "--appendonly", "yes", "--appendfsync", "always")
        everything = [target for sides in ends.values() for _, _, targets in sides.values() for target in targets]
        random.seed(options.seed)
        turns = []
        for mode, sides in ends.items():
            for port, dialect, _ in sides.values():
                load(peers, port, dialect, "set", options, keys, None)
            for number in range(options.turns):
                for name, (port, dialect, targets) in sides.items():
                    peers.progress(f"{mode}s, turn {number + 1} of {options.turns}: {name}")
                    others = [target for target in everything if target not in targets]
                    for target in others:
                        target.process.send_signal(signal.SIGSTOP)
                    try:
                        chosen = random.choices(keys, k=max(options.pipeline * 512, 4096))
                        result = load(peers, port, dialect, mode, options, chosen, options.seconds)
                    finally:
                        for target in others:
                            target.process.send_signal(signal.SIGCONT)
                    turns.append({"mode": mode, "turn": number, "side": name, **result})
        rows = []
        for mode, sides in ends.items():
            of = lambda side: [turn for turn in turns if (turn["mode"], turn["side"]) == (mode, side)]
            median = lambda side, what: statistics.median(turn[what] for turn in of(side))
            rows += [{"mode": mode, "side": side, "iops": median(side, "iops"), "p50_us": median(side, "p50_us"),
                      "Willow over it": statistics.median(mine["iops"] / its["iops"] for mine, its in zip(of("Willow"), of(side)))}
                     for side in sides]
    if options.json:
        return {"peers": "pairs", "bytes": options.bytes, "connections": options.connections, "pipeline": options.pipeline, "rows": rows,
                "turns": turns}
    peers.table([f"{options.bytes} bytes, {options.connections} x {options.pipeline}", "a second", "p50 us", "Willow over it"],
                [[f"{row['mode']}, {row['side']}", f"{row['iops']:,.0f}", f"{row['p50_us']:,.0f}", f"{row['Willow over it']:.2f}"] for row in rows])
    return None
