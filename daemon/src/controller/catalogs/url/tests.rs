use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::Notify;

use super::{Answer, Fetcher, Keeper, Reading, client, fetch, shown};

const CATALOG: &str = "stable: v1.35.1\nimages: []\n";

/// A server that gives one answer after the other, and then says what it was asked.
fn server(answers: Vec<String>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "http://{}/images.yaml?token=secret",
        listener.local_addr().unwrap()
    );
    let task = std::thread::spawn(move || {
        let one = |answer: &String| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).unwrap();
            // Who has read enough hangs up.
            let _ = stream.write_all(answer.as_bytes());
            String::from_utf8_lossy(&request[..read]).to_lowercase()
        };
        answers.iter().map(one).collect()
    });
    (url, task)
}

fn answer(head: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// One whose API server does not answer.
fn keeper() -> Keeper {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    Keeper::new(kube::Client::try_from(config).unwrap(), "kube-system")
}

#[tokio::test]
async fn a_catalog_is_asked_for_by_its_tag() {
    let answers = vec![
        answer("200 OK\r\nETag: \"one\"", CATALOG),
        answer("304 Not Modified", ""),
    ];
    let (url, task) = server(answers);
    let client = client().unwrap();
    let Ok(Answer::New(body, tag)) = fetch(&client, &url, None).await else {
        panic!()
    };
    assert_eq!(body, CATALOG.as_bytes());
    assert!(matches!(
        fetch(&client, &url, tag.as_ref()).await,
        Ok(Answer::Unchanged)
    ));
    let asked = task.join().unwrap();
    assert!(!asked[0].contains("if-none-match"));
    assert!(asked[1].contains("if-none-match: \"one\""));
}

#[tokio::test]
async fn what_goes_wrong_is_named_without_the_query() {
    let (url, _task) = server(vec![answer("503 Service Unavailable", "")]);
    let client = client().unwrap();
    let trouble = fetch(&client, &url, None).await.err().unwrap();
    assert_eq!(trouble.reason, "HTTPStatus");
    assert!(
        trouble.message.contains("503") && !trouble.message.contains("secret"),
        "{}",
        trouble.message
    );
    // Nobody listens there any more.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/?token=secret", listener.local_addr().unwrap());
    drop(listener);
    let trouble = fetch(&client, &url, None).await.err().unwrap();
    assert_eq!(trouble.reason, "Unreachable");
    assert!(!trouble.message.contains("secret"), "{}", trouble.message);
    assert_eq!(shown("https://h/a?b#c"), "https://h/a");
}

#[tokio::test]
async fn too_much_is_read_no_further_than_needed() {
    let large = "#".repeat(3 << 20);
    let (url, _task) = server(vec![answer("200 OK", &large)]);
    let Ok(Answer::New(body, _)) = fetch(&client().unwrap(), &url, None).await else {
        panic!()
    };
    assert!(body.len() > slotd_crds::catalog::LIMIT && body.len() < large.len());
}

#[tokio::test]
async fn a_fetcher_tells_what_it_read_and_ends_with_who_asked() {
    let (url, task) = server(vec![answer("200 OK", CATALOG)]);
    let changed = Arc::new(Notify::new());
    let keeper = keeper();
    let fetcher = Fetcher::start(&url, changed.clone(), keeper);
    assert!(matches!(fetcher.reading(), Reading::Unknown));
    tokio::time::timeout(Duration::from_secs(30), changed.notified())
        .await
        .unwrap();
    let reading = fetcher.reading();
    assert_eq!(
        reading.catalog().and_then(|catalog| catalog.stable()),
        Some("v1.35.1")
    );
    task.join().unwrap();
}
