//! A proxy of hyper's server and client and nothing else, to measure the share of these crates in
//! the time of the gateway. It reads no token, checks no header, and decides and counts nothing.

use std::convert::Infallible;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut ports = std::env::args().skip(1).map(|port| port.parse::<u16>());
    let (Some(Ok(port)), Some(Ok(upstream))) = (ports.next(), ports.next()) else {
        anyhow::bail!("usage: bare PORT UPSTREAM");
    };
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<_, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let client = client.clone();
        let pass = service_fn(move |mut request: Request<Incoming>| {
            let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
            let target = Uri::builder().scheme("http").authority(format!("127.0.0.1:{upstream}"));
            *request.uri_mut() = target.path_and_query(path).build().expect("it came as a path");
            request.headers_mut().remove(header::HOST);
            let answer = client.request(request);
            async { Ok::<_, Infallible>(answer.await.expect("the upstream answers")) }
        });
        tokio::spawn(async move {
            let http = auto::Builder::new(TokioExecutor::new());
            let _ = http.serve_connection(TokioIo::new(stream), pass).await;
        });
    }
}
