"""What the processes beside a picker share: a lock, files, a memory, the records' reader."""
