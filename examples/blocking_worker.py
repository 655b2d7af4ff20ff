"""The same without an event loop: for scripts, threads and frameworks that block. Needs a node."""

import waterclock


def main() -> None:
    """Publish and consume, one call after the other."""
    with waterclock.connect_blocking() as client:
        for name in (b"ada", b"grace"):
            client.publish("people", name, key=name)
        with client.subscribe("people", group="greeters") as messages:
            for message in messages:
                print("hello", message.value)
                message.ack()
                if message.value == b"grace":
                    break
        print("left over:", client.groups.get("people", "greeters").lag)


if __name__ == "__main__":
    main()
