"""The promise that every engine keeps: operations, wire models, error codes and requirements."""
