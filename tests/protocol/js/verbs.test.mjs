/** Tests of verbs that no other test calls. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox, Secret } from 'e2b'
import { withSandbox } from './sandboxes.mjs'

withSandbox('the deprecated name of pause', async (sandbox) => {
  await sandbox.betaPause()
  assert.equal((await Sandbox.getInfo(sandbox.sandboxId)).state, 'paused')
})

withSandbox('full info of a sandbox', async (sandbox) => {
  const info = await Sandbox.getFullInfo(sandbox.sandboxId)
  assert.equal(info.sandboxId, sandbox.sandboxId)
})

withSandbox('MCP URL and token', async (sandbox) => {
  assert.equal(sandbox.getMcpUrl(), `https://${sandbox.getHost(50005)}/mcp`)
  await sandbox.files.write('/etc/mcp-gateway/.token', 'of the gateway', { user: 'root' })
  assert.equal(await sandbox.getMcpToken(), 'of the gateway')
})

withSandbox('stdin and kill through the command handle', async (sandbox) => {
  const cat = await sandbox.commands.run('cat', { background: true, stdin: true })
  await cat.sendStdin('through the handle')
  await cat.closeStdin()
  assert.equal((await cat.wait()).stdout, 'through the handle')
  const sleeping = await sandbox.commands.run('sleep 60', { background: true })
  assert.equal(await sleeping.kill(), true)
  await assert.rejects(sleeping.wait())
})

test('workload identity is refused', async () => {
  const aws = Secret.iamToken({ audience: 'sts.amazonaws.com', tokenType: 'JWT-SVID' })
  await assert.rejects(Sandbox.create({ iam: { tokens: { aws } } }), /Workload identity is not supported/)
})
