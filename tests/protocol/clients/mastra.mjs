import assert from 'node:assert'
import { E2BSandbox } from '@mastra/e2b'

const sandbox = new E2BSandbox({ id: 'sandyard-test' })
await sandbox.start()
try {
  const ran = await sandbox.executeCommand('sh', ['-c', 'echo $((6 * 7)); command -v s3fs'])
  assert.equal((await sandbox.executeCommand('sh', ['-c', 'exit 3'])).exitCode, 3)
  assert.deepEqual(ran.stdout.trim().split('\n'), ['42', '/usr/bin/s3fs'])
  await sandbox.writeFiles([{ path: '/home/user/plan.md', content: 'a plan' }])
  assert.equal((await sandbox.executeCommand('cat', ['/home/user/plan.md'])).stdout, 'a plan')
} finally {
  await sandbox.destroy()
}
process.exit(0)
