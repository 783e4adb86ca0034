import assert from 'node:assert/strict'
import { until, withSandbox } from './sandboxes.mjs'

/** Request a port of a sandbox, as a script does: routing headers name the sandbox and the port. */
const request = (sandbox, port, headers = {}, path = '/') =>
  fetch(process.env.E2B_SANDBOX_URL + path, {
    headers: { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port), ...headers },
  })

const startServer = async (sandbox, headers) => {
  await sandbox.files.write('page.html', 'hello')
  await sandbox.commands.run('python3 -m http.server 8000', { background: true, timeoutMs: 0 })
  await until(async () => (await request(sandbox, 8000, headers)).ok)
}

withSandbox('a public port', async (sandbox) => {
  assert.equal(sandbox.trafficAccessToken, undefined)
  assert.ok(sandbox.getHost(8000).startsWith(`8000-${sandbox.sandboxId}.`))
  await startServer(sandbox)
  assert.equal(await (await request(sandbox, 8000, {}, '/page.html')).text(), 'hello')
  const closed = await request(sandbox, 8001)
  assert.equal(closed.status, 502)
  assert.match((await closed.json()).message, /port is not open/)
})

withSandbox('a private port needs the traffic token', { network: { allowPublicTraffic: false } }, async (sandbox) => {
  const token = { 'e2b-traffic-access-token': sandbox.trafficAccessToken }
  await startServer(sandbox, token)
  assert.equal((await request(sandbox, 8000)).status, 403)
  assert.equal((await request(sandbox, 8000, { 'e2b-traffic-access-token': 'guess' })).status, 403)
  assert.equal(await (await request(sandbox, 8000, token, '/page.html')).text(), 'hello')
  assert.equal((await sandbox.getInfo()).network.allowPublicTraffic, false)
})

withSandbox('a request resumes a sandbox with auto-resume', { lifecycle: { onTimeout: 'pause', autoResume: true } }, async (sandbox) => {
  await startServer(sandbox)
  await sandbox.pause()
  assert.equal((await sandbox.getInfo()).state, 'paused')
  assert.equal(await (await request(sandbox, 8000, {}, '/page.html')).text(), 'hello')
  assert.equal((await sandbox.getInfo()).state, 'running')
})

withSandbox('HTTPS ports are stored', { network: { httpsPorts: [8443] } }, async (sandbox) => {
  assert.deepEqual((await sandbox.getInfo()).network.httpsPorts, [8443])
  assert.equal((await request(sandbox, 8443)).status, 502)
})
