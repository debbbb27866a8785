"""What requests cost: benchmarks that anyone can run, and the goals that their figures are held against."""

import os

# grpc reads it when it is imported. Children here become other programs at once, so that its handlers around
# forks have nothing to do; they would only say so, a line for each child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
