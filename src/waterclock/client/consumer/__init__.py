"""Reading topics: subscriptions of a group's member, replays and fetches."""
