"""Who is in the cluster: HashiCorp's memberlist protocol (SWIM and Lifeguard), without any IO."""
