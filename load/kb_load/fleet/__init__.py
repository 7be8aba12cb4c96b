"""A fleet in virtual time: many servers, engines and index nodes, from what one call costs."""
