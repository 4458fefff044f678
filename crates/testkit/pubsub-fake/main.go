// A Pub/Sub server for tests: Google's own in-memory fake (package pstest, from Debian), on a loopback
// port, with the behaviour of the real service that this old version lacks:
//
//   - a receipt for each delivery, which exactly-once subscriptions check
//   - delivery attempts, and the dead-letter topic after the last one
//   - a pull that returns as soon as there is a message
//   - the answers to a wrong project, a missing permission and an expired token
//   - TLS with access tokens, and the token server of a service account
//
// It also sends and receives messages as a program of other people does, with Google's client (sdk.go).
package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io/ioutil"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/pstest"
	"github.com/golang/protobuf/proto"
	emptypb "github.com/golang/protobuf/ptypes/empty"
	pb "google.golang.org/genproto/googleapis/pubsub/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// version is what `cargo xtask services` shows.
const version = "1.0"

// pullWait is how long a pull waits for a message. The real service waits for a minute and a half.
const pullWait = 5 * time.Second

// enableExactlyOnce is the field `enable_exactly_once_delivery: true` of a subscription, which this
// version of the API does not know and keeps as it is.
var enableExactlyOnce = []byte{0x80, 0x01, 0x01}

type server struct {
	*pstest.GServer
	mu   sync.Mutex
	subs map[string]*subscription
}

// subscription is what the fake does not keep.
type subscription struct {
	exactlyOnce bool
	deadLetter  *pb.DeadLetterPolicy
	deliveries  map[string]*delivery
	ackDeadline time.Duration
}

// delivery is the last delivery of a message.
type delivery struct {
	number int32
	until  time.Time
}

func (s *server) CreateSubscription(c context.Context, r *pb.Subscription) (*pb.Subscription, error) {
	if r.AckDeadlineSeconds == 0 {
		r.AckDeadlineSeconds = 10
	}
	created, err := s.GServer.CreateSubscription(c, r)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.subs[r.Name] = &subscription{
			exactlyOnce: bytes.Contains(r.XXX_unrecognized, enableExactlyOnce),
			deadLetter:  r.DeadLetterPolicy,
			deliveries:  map[string]*delivery{},
			ackDeadline: time.Duration(r.AckDeadlineSeconds) * time.Second,
		}
	}
	return created, err
}

func (s *server) DeleteSubscription(c context.Context, r *pb.DeleteSubscriptionRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	delete(s.subs, r.Subscription)
	s.mu.Unlock()
	return s.GServer.DeleteSubscription(c, r)
}

func (s *server) Pull(c context.Context, r *pb.PullRequest) (*pb.PullResponse, error) {
	end := time.Now().Add(pullWait)
	for {
		now := &pb.PullRequest{Subscription: r.Subscription, MaxMessages: r.MaxMessages, ReturnImmediately: true}
		pulled, err := s.GServer.Pull(c, now)
		if err != nil {
			return nil, err
		}
		received := s.deliver(r.Subscription, pulled.ReceivedMessages)
		if len(received) > 0 || time.Now().After(end) {
			return &pb.PullResponse{ReceivedMessages: received}, nil
		}
		select {
		case <-c.Done():
			return nil, c.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// deliver gives each message a receipt of its own, and moves those that were delivered too often to the
// dead-letter topic.
func (s *server) deliver(name string, messages []*pb.ReceivedMessage) []*pb.ReceivedMessage {
	var received, dead []*pb.ReceivedMessage
	s.mu.Lock()
	sub := s.subs[name]
	if sub == nil {
		s.mu.Unlock()
		return nil
	}
	for _, m := range messages {
		id := m.Message.MessageId
		d := sub.deliveries[id]
		if d == nil {
			d = &delivery{}
			sub.deliveries[id] = d
		}
		d.number++
		d.until = time.Now().Add(sub.ackDeadline)
		if sub.deadLetter != nil && d.number > sub.deadLetter.MaxDeliveryAttempts {
			dead = append(dead, m)
			continue
		}
		copy := proto.Clone(m).(*pb.ReceivedMessage)
		copy.AckId = fmt.Sprintf("%s/%d", id, d.number)
		if sub.deadLetter != nil {
			copy.DeliveryAttempt = d.number
		}
		received = append(received, copy)
	}
	s.mu.Unlock()
	for _, m := range dead {
		letter := proto.Clone(m.Message).(*pb.PubsubMessage)
		if letter.Attributes == nil {
			letter.Attributes = map[string]string{}
		}
		letter.Attributes["CloudPubSubDeadLetterSourceSubscription"] = name
		publish := &pb.PublishRequest{Topic: sub.deadLetter.DeadLetterTopic, Messages: []*pb.PubsubMessage{letter}}
		if _, err := s.GServer.Publish(context.Background(), publish); err == nil {
			ack := &pb.AcknowledgeRequest{Subscription: name, AckIds: []string{m.AckId}}
			s.GServer.Acknowledge(context.Background(), ack)
		}
	}
	return received
}

// receipts returns the messages of valid receipts, and an error that names the others if the
// subscription delivers exactly once. Other subscriptions ignore invalid receipts.
func (s *server) receipts(name string, ackIds []string, change func(*delivery)) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subs[name]
	if sub == nil {
		return nil, status.Errorf(codes.NotFound, "Resource not found (resource=%s).", name)
	}
	var valid []string
	invalid := map[string]string{}
	for _, ackId := range ackIds {
		parts := strings.Split(ackId, "/")
		d := sub.deliveries[parts[0]]
		if len(parts) == 2 && d != nil && fmt.Sprint(d.number) == parts[1] && time.Now().Before(d.until) {
			valid = append(valid, parts[0])
			change(d)
		} else {
			invalid[ackId] = "PERMANENT_FAILURE_INVALID_ACK_ID"
		}
	}
	if len(invalid) == 0 || !sub.exactlyOnce {
		return valid, nil
	}
	failed := status.New(codes.FailedPrecondition, "Some acknowledgement ids in the request were invalid.")
	failed, err := failed.WithDetails(&errdetails.ErrorInfo{Domain: "pubsub.googleapis.com", Metadata: invalid})
	if err != nil {
		return nil, err
	}
	return valid, failed.Err()
}

func (s *server) Acknowledge(c context.Context, r *pb.AcknowledgeRequest) (*emptypb.Empty, error) {
	valid, invalid := s.receipts(r.Subscription, r.AckIds, func(d *delivery) { d.until = time.Time{} })
	if len(valid) > 0 {
		ack := &pb.AcknowledgeRequest{Subscription: r.Subscription, AckIds: valid}
		if _, err := s.GServer.Acknowledge(c, ack); err != nil {
			return nil, err
		}
	}
	if invalid != nil {
		return nil, invalid
	}
	return &emptypb.Empty{}, nil
}

func (s *server) ModifyAckDeadline(c context.Context, r *pb.ModifyAckDeadlineRequest) (*emptypb.Empty, error) {
	if r.AckDeadlineSeconds < 0 || r.AckDeadlineSeconds > 600 {
		return nil, status.Errorf(codes.InvalidArgument, "Invalid ack deadline: %d.", r.AckDeadlineSeconds)
	}
	length := time.Duration(r.AckDeadlineSeconds) * time.Second
	valid, invalid := s.receipts(r.Subscription, r.AckIds, func(d *delivery) { d.until = time.Now().Add(length) })
	if len(valid) > 0 {
		modify := &pb.ModifyAckDeadlineRequest{
			Subscription: r.Subscription, AckIds: valid, AckDeadlineSeconds: r.AckDeadlineSeconds,
		}
		if _, err := s.GServer.ModifyAckDeadline(c, modify); err != nil {
			return nil, err
		}
	}
	if invalid != nil {
		return nil, invalid
	}
	return &emptypb.Empty{}, nil
}

// Seek deletes all messages that are not leased. That of the fake revives messages of other topics.
func (s *server) Seek(c context.Context, r *pb.SeekRequest) (*pb.SeekResponse, error) {
	for {
		all := &pb.PullRequest{Subscription: r.Subscription, MaxMessages: 1000, ReturnImmediately: true}
		pulled, err := s.GServer.Pull(c, all)
		if err != nil {
			return nil, err
		}
		if len(pulled.ReceivedMessages) == 0 {
			return &pb.SeekResponse{}, nil
		}
		ack := &pb.AcknowledgeRequest{Subscription: r.Subscription}
		for _, m := range pulled.ReceivedMessages {
			ack.AckIds = append(ack.AckIds, m.AckId)
		}
		if _, err := s.GServer.Acknowledge(c, ack); err != nil {
			return nil, err
		}
	}
}

// refuse answers as Google does for these projects, whatever the request is.
func refuse(r interface{}) error {
	text := fmt.Sprint(r)
	switch {
	case strings.Contains(text, "projects/no-such-project/"):
		return status.Error(codes.NotFound, "Requested project not found or user does not have access to it "+
			"(project=no-such-project). Make sure to specify the unique project identifier and not the "+
			"Google Cloud Console display name.")
	case strings.Contains(text, "projects/denied-project/"):
		return status.Error(codes.PermissionDenied, "User not authorized to perform this action.")
	case strings.Contains(text, "projects/expired-project/"):
		return unauthenticated
	}
	return nil
}

var unauthenticated = status.Error(codes.Unauthenticated, "Request had invalid authentication credentials. "+
	"Expected OAuth 2 access token, login cookie or other valid authentication credential.")

// account is a service account with a token server.
type account struct {
	key     *rsa.PrivateKey
	token   string
	expired bool
}

// writeKeyFile writes the key file of the account, as `gcloud iam service-accounts keys create` does.
func (a *account) writeKeyFile(path string, tokenURI string) error {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return err
	}
	text, err := json.Marshal(map[string]string{
		"type":         "service_account",
		"project_id":   "of-the-key",
		"private_key":  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"client_email": "tests@of-the-key.iam.gserviceaccount.com",
		"token_uri":    tokenURI,
	})
	if err != nil {
		return err
	}
	// Complete or not there: the tests wait for it.
	if err := ioutil.WriteFile(path+".new", text, 0600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// ServeHTTP exchanges a signed assertion for an access token.
func (a *account) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.FormValue("assertion"), ".")
	valid := len(parts) == 3 && !a.expired
	if valid {
		signature, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[2], "="))
		digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		valid = err == nil && rsa.VerifyPKCS1v15(&a.key.PublicKey, crypto.SHA256, digest[:], signature) == nil
	}
	w.Header().Set("content-type", "application/json")
	if !valid {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}`)
		return
	}
	fmt.Fprintf(w, `{"access_token": %q, "expires_in": 3600, "token_type": "Bearer"}`, a.token)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	show := flag.Bool("version", false, "print the version")
	port := flag.Int("port", 0, "port on 127.0.0.1")
	cert := flag.String("cert", "", "certificate file: TLS, and requests need a token")
	key := flag.String("key", "", "private key file of the certificate")
	keyFile := flag.String("key-file", "", "key file of a service account to write")
	tokenPort := flag.Int("token-port", 0, "port of the token server on 127.0.0.1")
	expired := flag.Bool("expired", false, "the token server refuses the account")
	flag.Parse()
	switch {
	case *show:
		fmt.Println("pubsub-fake", version)
		return
	case flag.Arg(0) == "send":
		check(send(flag.Args()[1:]))
		return
	case flag.Arg(0) == "receive":
		check(receive(flag.Args()[1:]))
		return
	}
	var account account
	if *keyFile != "" {
		private, err := rsa.GenerateKey(rand.Reader, 2048)
		check(err)
		account.key, account.token, account.expired = private, "token-of-the-tests", *expired
		tokens, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *tokenPort))
		check(err)
		go http.Serve(tokens, &account)
		check(account.writeKeyFile(*keyFile, fmt.Sprintf("http://127.0.0.1:%d/token", *tokenPort)))
	}
	intercept := func(c context.Context, r interface{}, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (interface{}, error) {
		if err := refuse(r); err != nil {
			return nil, err
		}
		if *cert != "" {
			headers, _ := metadata.FromIncomingContext(c)
			if got := headers.Get("authorization"); len(got) != 1 || got[0] != "Bearer "+account.token {
				return nil, unauthenticated
			}
		}
		return next(c, r)
	}
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(16 << 20), grpc.UnaryInterceptor(intercept)}
	if *cert != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		check(err)
		options = append(options, grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	check(err)
	s := &server{GServer: &pstest.NewServer().GServer, subs: map[string]*subscription{}}
	g := grpc.NewServer(options...)
	pb.RegisterPublisherServer(g, s)
	pb.RegisterSubscriberServer(g, s)
	check(g.Serve(listener))
}
