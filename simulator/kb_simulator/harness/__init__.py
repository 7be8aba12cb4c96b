"""The harness of the fake engine: virtual time, faults, the journal, namespaces and the control plane."""
