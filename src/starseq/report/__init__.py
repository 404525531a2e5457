"""Pages and pictures of what runs found: self-contained, and everything in them escaped."""
