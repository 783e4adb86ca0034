import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { InvalidArgumentError, Secret, SecretNotFoundError } from 'e2b'
import { withSandbox } from './sandboxes.mjs'

test('create, update and destroy a secret', async () => {
  const name = `Key-${randomUUID()}`
  const created = await Secret.create(name, 'one', { metadata: { team: 'red' } })
  assert.match(created.secretId, /^sec_/)
  assert.deepEqual([created.name, created.version, created.metadata], [name.toLowerCase(), 1, { team: 'red' }])
  assert.ok(created.createdAt instanceof Date)
  assert.ok(!('value' in created))
  const updated = await Secret.update(name, 'two')
  assert.deepEqual([updated.secretId, updated.version, updated.metadata], [created.secretId, 2, { team: 'red' }])
  assert.deepEqual((await Secret.update(created.secretId, 'three', { metadata: {} })).metadata, {})
  assert.equal((await Secret.getInfo(created.secretId)).version, 3)
  assert.equal(await Secret.exists(name), true)
  await assert.rejects(Secret.create(name, 'again'), /already/)
  assert.equal(await Secret.destroy(name), true)
  assert.equal(await Secret.destroy(name), false)
  assert.equal(await Secret.exists(name), false)
  await assert.rejects(Secret.getInfo(name), SecretNotFoundError)
  await assert.rejects(Secret.update(name, 'four'), SecretNotFoundError)
})

test('list pages', async () => {
  const run = randomUUID()
  const names = ['a', 'b', 'c'].map((letter) => `${run}-${letter}`)
  for (const name of names) await Secret.create(name, 'value')
  const listed = []
  const pages = Secret.list({ limit: 2 })
  while (pages.hasNext) listed.push(...(await pages.nextItems()).map((info) => info.name))
  assert.deepEqual(
    listed.filter((name) => name.startsWith(run)),
    names.toReversed(),
  )
  for (const name of names) await Secret.destroy(name)
})

const header = { Authorization: `Bearer ${Secret.fill('some-key')}` }
const rules = { 'api.example.com': [{ transform: { headers: header } }] }

withSandbox('network rules are returned unchanged', { network: { rules } }, async (sandbox) => {
  assert.deepEqual((await sandbox.getInfo()).network?.rules, rules)
  await sandbox.updateNetwork({})
  assert.ok(!(await sandbox.getInfo()).network?.rules)
  await sandbox.updateNetwork({ rules })
  assert.deepEqual((await sandbox.getInfo()).network?.rules, rules)
  await assert.rejects(sandbox.updateNetwork({ rules: { '10.0.0.0/8': [{ transform: { headers: header } }] } }), /without an address or port/)
  const { stdout } = await sandbox.commands.run('env; cat /etc/ssl/certs/ca-certificates.crt | tail -30')
  assert.match(stdout, /SSL_CERT_FILE=/)
  assert.ok(!stdout.includes('PRIVATE KEY'))
})

test('names that are invalid in a placeholder are refused', () => {
  for (const name of ['', '{name', 'name}', 'name\n']) assert.throws(() => Secret.fill(name), InvalidArgumentError)
})
