"""What a secured node wrote down of denials and calls, as a table."""

from tests.client.secured import credential_of
from tests.server.secure_serving import secure_node


def test_spark_reads_who_was_refused_and_who_changed_something(spark, tmp_path):
    with secure_node(tmp_path) as node:
        billing = node.add("billing", publish="orders.*")
        assert node.ask("POST", "/topics/orders.eu/messages", billing, {"value": "x"}).status == 201
        assert node.ask("DELETE", "/topics/orders.eu", billing).status == 403
        assert node.ask("DELETE", "/topics/orders.eu", node.admin).status == 204
        addresses = node.server.addresses
        admin = credential_of(node.folder, addresses.grpc, addresses.http).encode()
        audit = spark.read.format("waterclock").options(topic="__audit", credential=admin)
        entries = audit.load().selectExpr(
            "from_json(cast(value AS string), 'outcome string, principal string, operation string,"
            " topic string, error string') AS entry"
        )
        found = entries.select("entry.*").where("operation = 'deleteTopic'").collect()

    assert {tuple(row) for row in found} == {
        ("denied", "billing", "deleteTopic", "orders.eu", "Forbidden"),
        ("allowed", "admin", "deleteTopic", "orders.eu", ""),
    }
