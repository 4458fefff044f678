//! The examples with their own configuration files, on the broker that the variable `QUEUE` selects.

use std::path::{Path, PathBuf};

use sluicegate_testkit::pubsub::PubSubServer;
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::servicebus::ServiceBusServer;
use sluicegate_testkit::sqs::SqsServer;

use crate::common::{RunningService, sluicegate};

/// A broker with the variables that select it, and a Redis.
pub(crate) struct ExampleSetup {
    variables: Vec<(&'static str, String)>,
    redis: RedisServer,
    _server: Box<dyn std::any::Any>,
}

impl ExampleSetup {
    fn new(server: impl std::any::Any, variables: &[(&'static str, &str)]) -> Self {
        let variables = variables.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let redis = RedisServer::start(Version::System, &[]);
        Self { variables: variables.collect(), redis, _server: Box::new(server) }
    }

    /// Returns one of the variables that select the broker.
    pub(crate) fn variable(&self, name: &str) -> &str {
        let found = self.variables.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| value.as_str()).expect("a variable of the broker")
    }

    /// Returns the variables of all processes of an example, which has some of its own.
    pub(crate) fn environment(&self, own: &[(&'static str, &str)]) -> Vec<(&'static str, PathBuf)> {
        let redis = format!("redis://127.0.0.1:{}", self.redis.port);
        let shared = [
            ("STORE", "redis"),
            ("REDIS_URL", redis.as_str()),
            ("ADMIN_PORT", "0"),
            ("HTTP_PORT", "0"),
            ("GRPC_PORT", "0"),
        ];
        let broker = self.variables.iter().map(|(name, value)| (*name, value.as_str()));
        let all = broker.chain(shared).chain(own.iter().copied());
        all.map(|(name, value)| (name, value.into())).collect()
    }
}

/// Pub/Sub: the emulator variable of Google's own tools.
pub(crate) fn pubsub(_: &str) -> ExampleSetup {
    let server = PubSubServer::start();
    let host = format!("127.0.0.1:{}", server.port);
    ExampleSetup::new(
        server,
        &[
            ("QUEUE", "pubsub"),
            ("PUBSUB_EMULATOR_HOST", &host),
            ("GOOGLE_CLOUD_PROJECT", "tests"),
            ("VISIBILITY", "10s"),
        ],
    )
}

/// Service Bus.
pub(crate) fn servicebus(_: &str) -> ExampleSetup {
    let server = ServiceBusServer::start();
    let (connection_string, admin_url) = (server.connection_string(), server.admin_url());
    ExampleSetup::new(
        server,
        &[
            ("QUEUE", "servicebus"),
            ("SERVICEBUS_CONNECTION_STRING", &connection_string),
            ("SERVICEBUS_ADMIN_URL", &admin_url),
            ("VISIBILITY", "5s"),
        ],
    )
}

/// SQS.
pub(crate) fn sqs(_: &str) -> ExampleSetup {
    let server = SqsServer::moto();
    let endpoint = format!("http://127.0.0.1:{}", server.port);
    ExampleSetup::new(
        server,
        &[
            ("QUEUE", "sqs"),
            ("SQS_ENDPOINT", &endpoint),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("VISIBILITY", "5s"),
        ],
    )
}

/// The configuration file of an example, and the variables of its processes.
pub(crate) struct Example {
    config: PathBuf,
    environment: Vec<(&'static str, PathBuf)>,
}

impl Example {
    /// Returns the example in this folder of `examples`.
    pub(crate) fn new(folder: &str, environment: Vec<(&'static str, PathBuf)>) -> Self {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        Self { config: examples.join(folder).join("sluicegate.yaml"), environment }
    }

    /// Runs a command to its end. Returns its exit code, its output and its errors.
    pub(crate) fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = sluicegate();
        command.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        let output = command.args(arguments).arg("--config").arg(&self.config).output();
        let output = output.expect("it ran");
        let [out, err] = [output.stdout, output.stderr].map(String::from_utf8);
        (output.status.code(), out.expect("text"), err.expect("text"))
    }

    /// Starts only some parts of the service, and creates missing queues.
    pub(crate) fn start(&self, parts: &str) -> RunningService {
        let variables: Vec<_> =
            self.environment.iter().map(|(name, value)| (*name, value.as_path())).collect();
        RunningService::spawn(&self.config, &variables, &["--create", "--only", parts])
    }
}
