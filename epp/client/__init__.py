"""What clients of a picker may import: nothing of the picker's own, no dependency beyond their SDK."""
