import assert from 'node:assert'
import { e2b } from '@computesdk/e2b'
import { compute } from 'computesdk'

compute.setConfig({ provider: e2b({ apiKey: process.env.E2B_API_KEY }) })
const sandbox = await compute.sandbox.create()
try {
  assert.equal((await sandbox.runCommand('echo $((6 * 7))')).stdout.trim(), '42')
  assert.equal((await sandbox.runCommand('exit 3')).exitCode, 3)
  await sandbox.filesystem.mkdir('/home/user/notes')
  await sandbox.filesystem.writeFile('/home/user/notes/plan.md', 'a plan')
  assert.equal(await sandbox.filesystem.readFile('/home/user/notes/plan.md'), 'a plan')
  assert.deepEqual((await sandbox.filesystem.readdir('/home/user/notes')).map((entry) => entry.name), ['plan.md'])
  assert.match(await sandbox.getUrl({ port: 8000 }), /^https:\/\/8000-/)
} finally {
  await sandbox.destroy()
}
process.exit(0)
