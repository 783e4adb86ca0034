/** Test of aptInstall, in its own file because downloading the package lists takes long. */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { Sandbox, Template } from 'e2b'

test('aptInstall installs a Debian package', async () => {
  const name = `js-apt-${randomUUID()}`
  await Template.build(Template().fromBaseImage().aptInstall(['hello'], { noInstallRecommends: true }), name)
  const sandbox = await Sandbox.create(name)
  try {
    assert.equal((await sandbox.commands.run('hello')).stdout, 'Hello, world!\n')
  } finally {
    await sandbox.kill()
    const headers = { 'X-API-Key': process.env.E2B_API_KEY }
    await fetch(`${process.env.E2B_API_URL}/templates/${name}`, { method: 'DELETE', headers })
  }
})
