"""Who may call: the bearer key, the headers Host and Origin, and whose word a proxy carries."""
