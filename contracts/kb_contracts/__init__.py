"""The contract of every engine: operations, wire models, error codes and requirements."""
