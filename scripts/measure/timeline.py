#!/usr/bin/env python3
"""Says where the time of a message goes, from what two ranks have recorded of a ping-pong.

  mpirun -np 2 -x LD_PRELOAD=libgpudt-pmpi.so -x GPUDT_TIMELINE=prefix gpudt-pingpong --ways mpi --sizes 1K ...
  timeline.py prefix.0.json prefix.1.json [--skip N]

A message is what one rank sends by MPI_Send, or its like, and the other receives by MPI_Recv, both in device memory:
the n-th of one are the n-th of the other. (Nonblocking calls are in the files, for Perfetto, but not in the tables.) The
ranks must share a node, and thus a clock. --skip leaves out the first N messages of each direction.

Three tables of steps, each from one point to the next, in microseconds: how many there were, the 10th percentile, the
median and the 90th. Steps are in the order in which they occur in a message.

  critical path  from the sender's call to the return of the receiver's. s: is the sender's point, r: the receiver's.
                 Found backwards: before each point comes the one before it on the same rank, or what it waited for
                 on the other, whichever was later. So what one rank does while the other goes on is left out, and the
                 steps of a message add up to its time. A message that waits for its receive goes from the sender's
                 call at once to the receiver's, if that comes later. Below: the sum of the medians, each as often as
                 it occurs in a message, beside the median of the whole.
  sender         all steps of its call, waiting for the receiver among them
  receiver       likewise; it may wait for the message from long before that is sent
"""

import argparse
import collections
import json
import math
import pathlib
import statistics
import sys

SENDER, RECEIVER = "s", "r"
CALLS = {SENDER: ("send entered", "send returned"), RECEIVER: ("receive entered", "receive returned")}
# A point that waits for the other rank: for which of its points.
CAUSES = {
    "message arrived": ("given to MPI",),
    "part arrived": ("part given to MPI", "part handed over"),
    "request for data seen": ("data asked for",),
    "acknowledgement seen": ("released",),
}

Point = collections.namedtuple("Point", "role name us")
Timeline = collections.namedtuple("Timeline", "rank lost events")
Message = collections.namedtuple("Message", "sender receiver")  # the points of their calls, in order of time


class Refusal(Exception):
    """Why there is nothing to say."""


def read(path):
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        events = [(event["name"], event["ts"]) for event in document["traceEvents"] if event["ph"] == "i"]
        return Timeline(document["otherData"]["rank"], document["otherData"]["lost"], events)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(f"{path} is no timeline of GPUDT_TIMELINE: {error!r}") from error


def calls(timeline, role):
    """The points of each of the rank's calls, from its entry to its return."""
    entered, returned = CALLS[role]
    found, current = [], None
    for name, us in timeline.events:
        if name == entered:
            current = []
        if current is not None:
            current.append(Point(role, name, us))
            if name == returned:
                found.append(current)
                current = None
    return found


def messages(one, other, skip):
    """Those of both directions. Points that are lacking are the latest."""
    found = []
    for sending, receiving in ((one, other), (other, one)):
        sent, received = calls(sending, SENDER), calls(receiving, RECEIVER)
        if len(sent) != len(received) and not (sending.lost or receiving.lost):
            raise Refusal(f"rank {sending.rank} has sent {len(sent)} messages from device memory, and rank "
                          f"{receiving.rank} has received {len(received)} there: this is no ping-pong")
        for message in list(map(Message, sent, received))[skip:]:
            if message.receiver[-1].us < message.sender[0].us:
                raise Refusal(f"rank {receiving.rank} has received what rank {sending.rank} had not sent: they do not "
                              "share a clock, or this is no ping-pong")
            found.append(message)
    if not found:
        raise Refusal("there are no messages")
    return found


def cause(message, point):
    """The point of the other rank that this one waited for: of several, the one with the same number."""
    here, there = message.sender, message.receiver
    if point.role == RECEIVER:
        here, there = there, here
    causes = [other for other in there if other.name in CAUSES.get(point.name, ()) and other.us <= point.us]
    number = [other for other in here if other.name == point.name].index(point)
    return causes[min(number, len(causes) - 1)] if causes else None


def before(message, point):
    """The point before this one on the critical path."""
    start = message.sender[0]
    points = message.sender if point.role == SENDER else message.receiver
    place = points.index(point)
    same_rank = points[place - 1] if place > 0 else start
    other_rank = cause(message, point)
    latest = other_rank if other_rank and other_rank.us >= same_rank.us else same_rank
    return latest if latest.us > start.us else start


def critical_path(message):
    path = [message.receiver[-1]]
    while path[-1] != message.sender[0]:
        path.append(before(message, path[-1]))
    return path[::-1]


def percentile(values, percent):
    """Between the two values that it lies between."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def steps(paths):
    """[((from, to), times)], in the order in which they end in a path."""
    times, ends = collections.defaultdict(list), collections.defaultdict(list)
    for path in paths:
        for first, second in zip(path, path[1:]):
            step = (f"{first.role}: {first.name}", f"{second.role}: {second.name}")
            times[step].append(second.us - first.us)
            ends[step].append(second.us - path[0].us)
    return [(step, times[step]) for step in sorted(times, key=lambda step: statistics.median(ends[step]))]


def table(title, paths):
    print(f"\n{title}")
    print(f"  {'from':28} {'to':28} {'count':>6} {'p10':>8} {'median':>8} {'p90':>8}")
    total = 0.0
    for (first, second), times in steps(paths):
        low, median, high = (percentile(times, percent) for percent in (10, 50, 90))
        total += median * len(times) / len(paths)
        print(f"  {first:28} {second:28} {len(times):6} {low:8.2f} {median:8.2f} {high:8.2f}")
    whole = [path[-1].us - path[0].us for path in paths]
    print(f"  {'sum of the medians':64} {'':8} {total:8.2f}")
    print(f"  {'the whole':57} {len(whole):6} {percentile(whole, 10):8.2f} {percentile(whole, 50):8.2f} "
          f"{percentile(whole, 90):8.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs=2, type=pathlib.Path, metavar="FILE")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="the first messages of each direction")
    options = parser.parse_args()
    try:
        timelines = [read(path) for path in options.files]
        found = messages(*timelines, options.skip)
    except Refusal as refusal:
        sys.exit(f"timeline.py: {refusal}")
    for timeline in timelines:
        if timeline.lost:
            print(f"rank {timeline.rank} lacks its latest {timeline.lost} points")
    print(f"{len(found)} messages, microseconds")
    table("critical path: from the sender's call to the return of the receiver's, one way",
          [critical_path(message) for message in found])
    table("sender", [message.sender for message in found])
    table("receiver", [message.receiver for message in found])


if __name__ == "__main__":
    main()
