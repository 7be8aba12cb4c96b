"""A second look at the best candidates of a search, by a model that reads question and passage together."""
