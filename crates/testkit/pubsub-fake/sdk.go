package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"cloud.google.com/go/pubsub"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
)

// send publishes a message with Google's own client: ADDRESS PROJECT TOPIC ORDERING_KEY BODY NAME=VALUE...
func send(arguments []string) error {
	ctx := context.Background()
	client, err := connect(ctx, arguments[0], arguments[1])
	if err != nil {
		return err
	}
	message := &pubsub.Message{Data: []byte(arguments[4]), Attributes: map[string]string{}, OrderingKey: arguments[3]}
	for _, attribute := range arguments[5:] {
		parts := strings.SplitN(attribute, "=", 2)
		message.Attributes[parts[0]] = parts[1]
	}
	topic := client.Topic(arguments[2])
	topic.EnableMessageOrdering = true
	id, err := topic.Publish(ctx, message).Get(ctx)
	if err == nil {
		fmt.Println(id)
	}
	return err
}

// receive takes one message with Google's own client, and prints it: ADDRESS PROJECT SUBSCRIPTION
func receive(arguments []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	client, err := connect(ctx, arguments[0], arguments[1])
	if err != nil {
		return err
	}
	subscription := client.Subscription(arguments[2])
	subscription.ReceiveSettings.MaxOutstandingMessages = 1
	return subscription.Receive(ctx, func(_ context.Context, message *pubsub.Message) {
		json.NewEncoder(os.Stdout).Encode(map[string]interface{}{
			"body": string(message.Data), "attributes": message.Attributes, "ordering_key": message.OrderingKey,
		})
		message.Ack()
		cancel()
	})
}

func connect(ctx context.Context, address string, project string) (*pubsub.Client, error) {
	connection, err := grpc.Dial(address, grpc.WithInsecure())
	if err != nil {
		return nil, err
	}
	return pubsub.NewClient(ctx, project, option.WithGRPCConn(connection))
}
