//! `cargo xtask docs`: builds the documentation into a static, searchable site with mdBook.
//!
//! The pages link to files outside of `docs`, so the source of the book is a copy of all Markdown
//! files of the repository and of the files that they link to, in the same folders. Pages that
//! `docs/SUMMARY.md` does not list are appended to the table of contents: mdBook renders no others.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use pulldown_cmark::{Event, Parser, Tag};

use crate::{services, sh};

/// Folder for the source of the book and its configuration.
const SOURCE: &str = "target/book-source";
/// Folder of the site.
const SITE: &str = "target/book";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only copy the pages to target/book-source, without installing and running mdBook
    #[arg(long)]
    copy_only: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    let tracked = sh::read(&["git", "ls-files", "-z"])?;
    let tracked: BTreeSet<&str> =
        tracked.split_terminator('\0').filter(|path| Path::new(path).is_file()).collect();
    let pages = copy(&tracked)?;
    println!("{pages} pages in {SOURCE}");
    if args.copy_only {
        return Ok(true);
    }
    services::install(&[&services::MDBOOK])?;
    let [program, ..] = services::MDBOOK.version else { bail!("mdBook has no command") };
    let (built, took) = sh::timed(|| sh::run(&[program, "build", SOURCE, "--dest-dir", SITE], &[]));
    if !built? {
        return Ok(false);
    }
    check_site(pages)?;
    println!("built {SITE}/index.html in {:.1} s", took.as_secs_f64());
    Ok(true)
}

/// Copies the pages and the files that they link to, with a configuration and a table of contents.
/// Returns the number of pages.
fn copy(tracked: &BTreeSet<&str>) -> anyhow::Result<usize> {
    let source = Path::new(SOURCE).join("src");
    if source.exists() {
        fs::remove_dir_all(&source)
            .with_context(|| format!("can't remove {}", source.display()))?;
    }
    let is_page = |path: &&str| path.ends_with(".md") && *path != "docs/SUMMARY.md";
    let pages: Vec<&str> = tracked.iter().copied().filter(is_page).collect();
    let mut files: BTreeSet<&str> = pages.iter().copied().collect();
    let mut titles = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page).with_context(|| format!("can't read {page}"))?;
        titles.push((*page, title(&text).unwrap_or(page).to_owned()));
        for target in links(page, &text) {
            let folder = format!("{target}/");
            let linked =
                tracked.iter().filter(|path| **path == target || path.starts_with(&folder));
            files.extend(linked);
        }
    }
    for file in &files {
        let to = source.join(file);
        let folder = to.parent().expect("a file has a folder");
        fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
        fs::copy(file, &to).with_context(|| format!("can't copy {file}"))?;
    }
    let listed = fs::read_to_string("docs/SUMMARY.md").context("can't read docs/SUMMARY.md")?;
    fs::write(source.join("SUMMARY.md"), summary(&listed, &titles))?;
    // `README.md` keeps its name: the links of other pages are to README.html then.
    let config = fs::read_to_string("book.toml").context("can't read book.toml")?;
    fs::write(Path::new(SOURCE).join("book.toml"), config)?;
    Ok(pages.len())
}

/// Returns the table of contents: that of `docs`, and the other pages after it.
fn summary(listed: &str, titles: &[(&str, String)]) -> String {
    // mdBook copies the first page to index.html, so it is one whose links start at the root.
    let first = "# Summary\n\n[Sluicegate](README.md)\n";
    let mut text = listed.replace("](", "](docs/").replacen("# Summary\n", first, 1);
    let is_listed = |page: &str| text.contains(&format!("({page})"));
    let others: String = titles
        .iter()
        .filter(|(page, _)| !is_listed(page))
        .map(|(page, title)| format!("- [{}]({page})\n", title.replace(['[', ']'], "")))
        .collect();
    text += &format!("\n# Repository\n\n{others}");
    text
}

/// Returns the first heading of a page.
fn title(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("# ")).map(str::trim)
}

/// Returns the paths in the repository that a page links to.
fn links(page: &str, text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for event in Parser::new(text) {
        let (Event::Start(Tag::Link { dest_url, .. }) | Event::Start(Tag::Image { dest_url, .. })) =
            event
        else {
            continue;
        };
        let target = dest_url.split(['#', '?']).next().unwrap_or_default();
        if !target.is_empty() && !target.contains(':') {
            targets.extend(resolve(page, target));
        }
    }
    targets
}

/// Returns the path in the repository of a link in `page`; `None` if it leaves the repository.
fn resolve(page: &str, target: &str) -> Option<String> {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if !path.pop() => return None,
            ".." => {}
            name => path.push(name),
        }
    }
    path.to_str().map(str::to_owned)
}

/// Checks that the site has every page and a search index, and that its links lead to files.
fn check_site(pages: usize) -> anyhow::Result<()> {
    let mut built = 0;
    let mut searchable = false;
    let mut broken = Vec::new();
    let mut folders = vec![PathBuf::from(SITE)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            searchable |= name.starts_with("searchindex");
            // These contain the links of other folders, or are shown for any address.
            let is_special = ["print.html", "toc.html", "404.html"].contains(&name);
            if name.ends_with(".html") && !is_special {
                built += 1;
                let text = fs::read_to_string(&path)?;
                let is_missing = |link: &&str| !folder.join(link).exists();
                let missing = hyperlinks(&text).filter(is_missing);
                broken.extend(missing.map(|link| format!("{}: {link}", path.display())));
            }
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    ensure!(searchable, "{SITE} has no search index: does book.toml enable the search?");
    ensure!(built >= pages, "{SITE} has {built} of {pages} pages");
    ensure!(broken.is_empty(), "links to nothing:\n{}", broken.join("\n"));
    Ok(())
}

/// Returns the links of a page of the site to other files of it.
fn hyperlinks(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let links = links.filter_map(|link| link.split(['#', '?']).next());
    links.filter(|link| !link.is_empty() && !link.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_links_of_a_page_are_paths_in_the_repository() {
        let text = "[a](api.md#top) ![b](images/x.png) [c](../deploy/docker) [d](https://a.b/c.md) \
                    [e](#here) [f](../../x)";
        assert_eq!(links("docs/a.md", text), ["docs/api.md", "docs/images/x.png", "deploy/docker"]);
    }

    #[test]
    fn links_to_other_files_of_the_site_are_found() {
        let text =
            r##"<a href="a.html#x">, <a href="#y">, <a href="https://b.c">, <link href="d.css">"##;
        assert_eq!(hyperlinks(text).collect::<Vec<_>>(), ["a.html", "d.css"]);
    }

    #[test]
    fn pages_that_the_documentation_does_not_list_are_appended() {
        let titles = [
            ("docs/a.md", "A".to_owned()),
            ("README.md", "S".to_owned()),
            ("b.md", "B [x]".to_owned()),
        ];
        let text = summary("# Summary\n\n- [A](a.md)\n", &titles);
        let expected =
            "# Summary\n\n[Sluicegate](README.md)\n\n- [A](docs/a.md)\n\n# Repository\n\n";
        assert_eq!(text, format!("{expected}- [B x](b.md)\n"));
    }
}
