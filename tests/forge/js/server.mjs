// Starts `emulate`'s GitHub, and adds what its API does not offer: new tokens and repositories at run time, and the branches of
// the real git repositories that ../facade.py serves. Reads {port, baseUrl} from standard input and exits when that is closed.
import { randomUUID, createHmac } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { createEmulator } from "emulate";

const input = createInterface({ input: process.stdin });
const { port, baseUrl } = JSON.parse((await input[Symbol.asyncIterator]().next()).value);
input.on("close", () => process.exit(0));

// The package does not export its GitHub plugin, it only starts it. The module below is the one it loads, so that changes made here
// are in effect when it starts.
const dist = new URL("./node_modules/emulate/dist/", import.meta.url);
const name = readdirSync(dist).find(
  (file) => /^dist-.*\.js$/.test(file) && /export \{[^}]*\bgithubPlugin\b/.test(readFileSync(new URL(file, dist), "utf8")),
);
const { githubPlugin, getGitHubStore, seedFromConfig } = await import(new URL(name, dist));

const register = githubPlugin.register;
githubPlugin.register = (app, store, webhooks, base, tokens) => {
  const github = getGitHubStore(store);
  const mergeCommits = new Map();
  webhooks.setHeaderFactory(makeHeaders);
  correctPayloads(github, webhooks, base);
  keepMergeCommits(github.pullRequests, mergeCommits);

  app.post("/_double/seed", async (c) => {
    seedFromConfig(store, base, await c.req.json(), webhooks);
    return c.body(null, 204);
  });
  app.post("/_double/tokens", async (c) => {
    const { token, login, scopes } = await c.req.json();
    tokens.set(token, { login, id: github.users.findOneBy("login", login).id, scopes });
    return c.body(null, 204);
  });
  app.post("/_double/merging", async (c) => {
    const { slug, number, commit } = await c.req.json();
    mergeCommits.set(pull(github, slug, number).id, commit);
    return c.body(null, 204);
  });
  app.post("/_double/branches", async (c) => {
    const push = await c.req.json();
    const repo = github.repos.findOneBy("full_name", push.slug);
    const moved = setBranches(github, repo, push.branches);
    for (const row of push.commits) insertCommit(github.commits, repo, row);
    const touched = push.pulls.filter((facts) => setPull(github, push.slug, facts));
    const get = async (path) => (await app.request(`${base}${path}`, { headers: { Authorization: `token ${push.token}` } })).json();
    const repository = await get(`/repos/${push.slug}`);
    const sender = await get(`/users/${push.login}`);
    const tell = (event, payload) =>
      void webhooks.dispatch(event, payload.action, { ...payload, repository, sender }, push.slug.split("/")[0], repo.name);
    for (const { ref, before, after } of moved) {
      const [created, deleted] = [/^0+$/.test(before), /^0+$/.test(after)];
      tell("push", { ref: `refs/heads/${ref}`, before, after, created, deleted, forced: false, commits: [] });
      if (created) tell("create", { ref, ref_type: "branch", master_branch: repo.default_branch });
      if (deleted) tell("delete", { ref, ref_type: "branch" });
    }
    for (const { number, before } of touched) {
      const pull_request = await get(`/repos/${push.slug}/pulls/${number}`);
      tell("pull_request", { action: "synchronize", number, before, after: pull_request.head.sha, pull_request });
    }
    return c.body(null, 204);
  });
  app.post("/_double/assign", async (c) => {
    const { slug, number, logins } = await c.req.json();
    const row = pull(github, slug, number);
    const ids = logins.map((login) => github.users.findOneBy("login", login)?.id).filter((id) => id !== undefined);
    github.pullRequests.update(row.id, { assignee_ids: [...new Set([...row.assignee_ids, ...ids])] });
    return c.body(null, 204);
  });
  app.post("/_double/draft", async (c) => {
    const { node, draft, token, login } = await c.req.json();
    const row = github.pullRequests.all().find((each) => each.node_id === node);
    if (!row) return c.body(null, 404);
    github.pullRequests.update(row.id, { draft });
    const slug = github.repos.get(row.repo_id).full_name;
    const get = async (path) => (await app.request(`${base}${path}`, { headers: { Authorization: `token ${token}` } })).json();
    const pull_request = await get(`/repos/${slug}/pulls/${row.number}`);
    const action = draft ? "converted_to_draft" : "ready_for_review";
    const payload = { action, number: row.number, pull_request, repository: pull_request.base.repo, sender: await get(`/users/${login}`) };
    void webhooks.dispatch("pull_request", action, payload, ...slug.split("/"));
    return c.json(pull_request);
  });
  register(app, store, webhooks, base, tokens);
};

// GitHub identifies a delivery by a GUID; emulate uses a number that restarts with every start.
function makeHeaders({ event, body, subscription }) {
  const headers = { "Content-Type": "application/json", "X-GitHub-Event": event, "X-GitHub-Delivery": randomUUID() };
  headers["User-Agent"] = "GitHub-Hookshot/double";
  if (subscription.secret) {
    const digest = createHmac("sha256", subscription.secret).update(body).digest("hex");
    headers["X-Hub-Signature-256"] = `sha256=${digest}`;
  }
  return headers;
}

// As in the answers of the API: no milliseconds, URLs below /api/v3. A check run also names its pull requests, and an issue its
// pull request.
function correctPayloads(github, webhooks, base) {
  const dispatch = webhooks.dispatch.bind(webhooks);
  const api = new RegExp(`${base}/(?=(?:repos|repositories|users|orgs|teams)\\b)`, "g");
  webhooks.dispatch = (event, action, payload, owner, repo) => {
    const text = JSON.stringify(payload).replace(/(?<="\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d{3}(?=Z")/g, "").replace(api, `${base}/api/v3/`);
    const corrected = JSON.parse(text);
    if (corrected.check_run) corrected.check_run.pull_requests = pullsOf(github, `${owner}/${repo}`, corrected.check_run.head_sha);
    if (corrected.issue && pull(github, `${owner}/${repo}`, corrected.issue.number))
      corrected.issue.pull_request = { url: corrected.issue.url.replace("/issues/", "/pulls/"), html_url: corrected.issue.html_url };
    return dispatch(event, action, corrected, owner, repo);
  };
}

function pullsOf(github, slug, commit) {
  const repo = github.repos.findOneBy("full_name", slug);
  const open = github.pullRequests.findBy("repo_id", repo.id).filter((row) => row.state === "open" && row.head_sha === commit);
  return open.map((row) => ({
    id: row.id,
    number: row.number,
    head: { ref: row.head_ref, sha: row.head_sha },
    base: { ref: row.base_ref, sha: row.base_sha },
  }));
}

// Emulate creates its own merge commit; this reports the one that git created instead.
function keepMergeCommits(pulls, made) {
  const update = pulls.update.bind(pulls);
  pulls.update = (id, change) =>
    update(id, change.merged && made.has(id) ? { ...change, merge_commit_sha: made.get(id) } : change);
}

function pull(github, slug, number) {
  const repo = github.repos.findOneBy("full_name", slug);
  return github.pullRequests.findBy("repo_id", repo.id).find((each) => each.number === number);
}

function setBranches(github, repo, wanted) {
  const none = "0".repeat(40);
  const moved = [];
  const refs = new Map(github.refs.findBy("repo_id", repo.id).map((row) => [row.ref, row]));
  const branches = new Map(github.branches.findBy("repo_id", repo.id).map((row) => [row.name, row]));
  for (const [ref, after] of Object.entries(wanted)) {
    const [row, branch] = [refs.get(`refs/heads/${ref}`), branches.get(ref)];
    if (branch?.sha === after && row) continue;
    moved.push({ ref, before: row?.sha ?? none, after });
    if (row) github.refs.update(row.id, { sha: after });
    else github.refs.insert({ repo_id: repo.id, ref: `refs/heads/${ref}`, sha: after, node_id: `REF_${repo.id}_${ref}` });
    if (branch) github.branches.update(branch.id, { sha: after });
    else github.branches.insert({ repo_id: repo.id, name: ref, sha: after, protected: false });
  }
  for (const [ref, row] of branches) {
    if (ref in wanted) continue;
    moved.push({ ref, before: row.sha, after: none });
    github.branches.delete(row.id);
    if (refs.has(`refs/heads/${ref}`)) github.refs.delete(refs.get(`refs/heads/${ref}`).id);
  }
  return moved;
}

function insertCommit(commits, repo, row) {
  if (commits.findBy("repo_id", repo.id).some((each) => each.sha === row.sha)) return;
  commits.insert({ repo_id: repo.id, node_id: `C_${row.sha}`, user_id: null, ...row });
}

// Returns true if the head has moved.
function setPull(github, slug, facts) {
  const row = pull(github, slug, facts.number);
  const { number, ...change } = facts;
  facts.before = row.head_sha;
  github.pullRequests.update(row.id, change);
  return facts.before !== change.head_sha;
}

await createEmulator({ service: "github", port, baseUrl, seed: { tokens: {}, github: { users: [] } } });
