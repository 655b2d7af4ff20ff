"""Removing a message from a DynamoDB table, in one transaction with what belongs to it."""

from waterclock.stores.dynamodb.items import (
    Action,
    Item,
    body_of,
    claim_item,
    number,
    position_of,
    stream_item,
)


class Removal:
    """A message to be removed: with its id, unless that is a later message's by now."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.is_gone = False
        self._has_id = True

    def actions(self) -> list[Action]:
        """Remove a message and its id; put its parts under a claim that has run out."""
        item = self.item
        key = {"pk": item["pk"], "sk": item["sk"]}
        actions: list[Action] = [
            {"Delete": {"Key": key, "ConditionExpression": "attribute_exists(pk)"}}
        ]
        if self._has_id:
            actions.append({"Delete": {
                "Key": stream_item(item["pk"]["B"][1:], b"i" + item["id"]["B"]),
                "ConditionExpression": "attribute_not_exists(pk) OR #position = :position",
                "ExpressionAttributeNames": {"#position": "position"},
                "ExpressionAttributeValues": {":position": number(position_of(item))},
            }})  # fmt: skip
        if body := body_of(item):
            actions.append({"Put": {"Item": claim_item(body.ref, body.parts, 0)}})
        return actions

    def learn(self, failed: Action) -> None:
        """Take note of which action found things otherwise."""
        if failed["Delete"]["Key"]["sk"] == self.item["sk"]:
            self.is_gone = True
        else:
            self._has_id = False
