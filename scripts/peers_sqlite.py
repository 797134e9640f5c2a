"""The part of scripts/peers that measures SQLite with Willow's extension beside SQLite's own ways to commit, on the same file system of the
same device: TPC-B's transaction by processes that share one base, each commit durable.

What always holds: after each turn the balances of accounts, tellers and branches and the history agree, and the history has every transaction
that was answered; else the measurement fails.
"""
import multiprocessing
import os
import random
import sqlite3
import statistics
import time
from pathlib import Path

BRANCHES, TELLERS, ACCOUNTS = 4, 10, 5000
# Way of committing: name of the virtual file system, statements of each connection.
WAYS = {
    "Willow": ("willow", []),
    "WAL": (None, ["pragma journal_mode=wal", "pragma synchronous=full"]),
    "rollback journal": (None, ["pragma journal_mode=delete", "pragma synchronous=full"]),
}
BUSY_SECONDS_MAX = 60


def connect(base, way, extension):
    vfs, statements = WAYS[way]
    if vfs:
        first = sqlite3.connect(":memory:")
        first.enable_load_extension(True)
        first.load_extension(str(extension))
    opened = sqlite3.connect(f"file:{base}" + (f"?vfs={vfs}" if vfs else ""), uri=True, timeout=BUSY_SECONDS_MAX, isolation_level=None)
    for statement in statements:
        opened.execute(statement)
    return opened


def fill(base, way, extension):
    opened = connect(base, way, extension)
    opened.execute("begin immediate")
    for table, count in (("branch", BRANCHES), ("teller", BRANCHES * TELLERS), ("account", BRANCHES * ACCOUNTS)):
        opened.execute(f"create table {table}(k integer primary key, balance integer, filler text)")
        opened.executemany(f"insert into {table} values (?, 0, ?)", ((k, "x" * 84) for k in range(count)))
    opened.execute("create table history(account integer, teller integer, branch integer, delta integer, filler text)")
    opened.execute("commit")
    opened.close()


def work(base, way, extension, seed, begin, seconds, told):
    """One process: transactions until the time is over."""
    draw, opened, latencies = random.Random(seed), connect(base, way, extension), []
    begin.wait()
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        account, delta = draw.randrange(BRANCHES * ACCOUNTS), draw.randrange(-99_999, 100_000)
        teller = draw.randrange(BRANCHES * TELLERS)
        branch = teller // TELLERS
        opened.execute("begin immediate")
        for table, k in (("account", account), ("teller", teller), ("branch", branch)):
            opened.execute(f"update {table} set balance = balance + ? where k = ?", (delta, k))
        opened.execute("insert into history values (?, ?, ?, ?, ?)", (account, teller, branch, delta, "x" * 22))
        opened.execute("commit")
        latencies.append(time.perf_counter() - began)
    report = opened.execute("pragma willow").fetchall() if WAYS[way][0] else []
    opened.close()
    told.put((latencies, [str(row[0]) for row in report]))


def once(options, peers, way, clients):
    base = Path(options.folder) / f"willow-peers-{os.getpid()}.db"
    names = [Path(f"{base}{end}") for end in ("", "-willow", "-journal", "-wal", "-shm")]
    try:
        fill(base, way, options.extension)
        context = multiprocessing.get_context("spawn")
        begin, told = context.Barrier(clients), context.Queue()
        processes = [context.Process(target=work, args=(base, way, options.extension, options.seed * 1000 + number, begin,
                                                        options.seconds, told)) for number in range(clients)]
        for process in processes:
            process.start()
        results = [told.get(timeout=options.seconds + 10 * BUSY_SECONDS_MAX) for _ in processes]
        for process in processes:
            process.join()
        latencies = [latency for result, _ in results for latency in result]
        said = {line for _, report in results for line in report}
        if WAYS[way][0] and not all(line.startswith("direct true") for line in said):
            raise peers.Failed(f"the base was not direct: {sorted(said)}")
        opened = connect(base, way, options.extension)
        one = lambda sql: opened.execute(sql).fetchone()[0]
        sums = {one(f"select coalesce(sum({column}), 0) from {table}") for table, column in
                (("account", "balance"), ("teller", "balance"), ("branch", "balance"), ("history", "delta"))}
        count = one("select count(*) from history")
        opened.close()
        if len(sums) != 1 or count != len(latencies):
            raise peers.Failed(f"{way}: the sums are {sorted(sums)}, and {count} transactions are there of {len(latencies)}")
        return {"iops": len(latencies) / options.seconds, "p50_us": statistics.median(latencies) * 1e6 if latencies else 0}
    finally:
        for name in names:
            name.unlink(missing_ok=True)


def sqlite(options, peers):
    if not os.environ.get("WILLOW_AGENT"):
        raise peers.Failed("WILLOW_AGENT is not set: docs/sqlite.md says what is needed")
    options.extension = Path(options.extension).resolve()
    turns = []
    for clients in options.clients:
        for number in range(options.turns):
            for way in WAYS:
                peers.progress(f"{clients} processes, turn {number + 1} of {options.turns}: {way}")
                turns.append({"clients": clients, "turn": number, "side": way, **once(options, peers, way, clients)})
    rows = []
    for clients in options.clients:
        of = lambda way: [turn for turn in turns if (turn["clients"], turn["side"]) == (clients, way)]
        for way in WAYS:
            ratio = statistics.median(mine["iops"] / max(its["iops"], 1e-9) for mine, its in zip(of("Willow"), of(way)))
            rows.append({"clients": clients, "side": way, "iops": statistics.median(turn["iops"] for turn in of(way)),
                         "p50_us": statistics.median(turn["p50_us"] for turn in of(way)), "Willow over it": ratio})
    if options.json:
        return {"peers": "sqlite", "seconds": options.seconds, "rows": rows, "turns": turns}
    peers.table(["TPC-B, processes", "transactions a second", "p50 us", "Willow over it"],
                [[f"{row['clients']}, {row['side']}", f"{row['iops']:,.0f}", f"{row['p50_us']:,.0f}", f"{row['Willow over it']:.2f}"]
                 for row in rows])
    return None
