"""What a fleet of many machines takes, from what was measured on one."""
