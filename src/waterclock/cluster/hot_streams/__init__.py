"""Hot streams: a stream that takes more than one node can is split over several. Pure."""
