"""Plain tool calls answered past the kernel of the SDK, and equal to its answers."""
