import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { AuthenticationError, Sandbox, SandboxNotFoundError } from 'e2b'
import { until, withSandbox } from './sandboxes.mjs'

const BOOT_ID = 'cat /proc/sys/kernel/random/boot_id'

test('quick start', async () => {
  const sandbox = await Sandbox.create()
  assert.equal(await sandbox.isRunning(), true)
  await sandbox.files.write('hello.txt', 'hello')
  const { stdout, exitCode } = await sandbox.commands.run('cat hello.txt')
  assert.deepEqual({ stdout, exitCode }, { stdout: 'hello', exitCode: 0 })
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.isRunning(), false)
  assert.equal(await sandbox.kill(), false)
})

withSandbox('info, metadata and environment', { metadata: { colour: 'blue' }, envs: { FOO: 'bar' }, timeoutMs: 100_000 }, async (sandbox) => {
  const info = await sandbox.getInfo()
  assert.equal(info.sandboxId, sandbox.sandboxId)
  assert.equal(info.state, 'running')
  assert.deepEqual(info.metadata, { colour: 'blue' })
  assert.ok(Math.abs(info.endAt - info.startedAt - 100_000) < 2000)
  assert.equal((await sandbox.commands.run('echo $FOO $E2B_SANDBOX_ID')).stdout, `bar ${sandbox.sandboxId}\n`)
})

withSandbox('connect does not shorten the timeout and timeout zero ends the sandbox', { timeoutMs: 300_000 }, async (sandbox) => {
  const { endAt } = await sandbox.getInfo()
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
  assert.deepEqual((await sandbox.getInfo()).endAt, endAt)
  await sandbox.setTimeout(0)
  await until(async () => !(await sandbox.isRunning()))
  await assert.rejects(sandbox.getInfo(), SandboxNotFoundError)
})

test('list with filters and pages', async () => {
  const metadata = { run: randomUUID(), odd: 'a b&c=d/ü' }
  const one = await Sandbox.create({ metadata })
  const two = await Sandbox.create({ metadata })
  try {
    const pages = Sandbox.list({ query: { metadata }, limit: 1 })
    assert.equal((await pages.nextItems())[0].sandboxId, two.sandboxId)
    assert.equal(pages.hasNext, true)
    assert.equal((await pages.nextItems())[0].sandboxId, one.sandboxId)
    assert.equal(pages.hasNext, false)
    await one.pause()
    const paused = await Sandbox.list({ query: { metadata, state: ['paused'] } }).nextItems()
    assert.deepEqual(paused.map((sandbox) => sandbox.sandboxId), [one.sandboxId])
  } finally {
    await one.kill()
    await two.kill()
  }
})

withSandbox('pause keeps processes and connect resumes them', { envs: { KEPT: 'yes' } }, async (sandbox) => {
  const boot = (await sandbox.commands.run(BOOT_ID)).stdout
  const command = await sandbox.commands.run('sleep 3600', { background: true, timeoutMs: 0 })
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.isRunning(), false)
  const again = await sandbox.connect()
  assert.equal(again.sandboxId, sandbox.sandboxId)
  assert.ok((await sandbox.commands.list()).some((process) => process.pid === command.pid))
  assert.equal((await sandbox.commands.connect(command.pid)).pid, command.pid)
  assert.equal((await sandbox.commands.run(BOOT_ID)).stdout, boot)
  assert.equal((await sandbox.commands.run('echo $KEPT')).stdout, 'yes\n')
})

withSandbox('pause without memory keeps only the files', async (sandbox) => {
  await sandbox.files.write('note.txt', 'on disk')
  const boot = (await sandbox.commands.run(BOOT_ID)).stdout
  await sandbox.pause({ keepMemory: false })
  await sandbox.connect()
  assert.equal(await sandbox.files.read('note.txt'), 'on disk')
  assert.notEqual((await sandbox.commands.run(BOOT_ID)).stdout, boot)
})

withSandbox('auto-pause and auto-resume', { timeoutMs: 60_000, lifecycle: { onTimeout: 'pause', autoResume: true } }, async (sandbox) => {
  await sandbox.setTimeout(0)
  await until(async () => (await sandbox.getInfo()).state === 'paused')
  assert.equal((await sandbox.commands.run('echo awake')).stdout, 'awake\n')
  assert.equal((await sandbox.getInfo()).state, 'running')
})

withSandbox('fork copies the files', async (sandbox) => {
  await sandbox.files.write('state.txt', 'before')
  const forks = await sandbox.fork({ count: 2 })
  try {
    assert.equal(forks.length, 2)
    for (const fork of forks) {
      assert.ok(fork instanceof Sandbox, String(fork))
      assert.equal(await fork.files.read('state.txt'), 'before')
      await fork.files.write('state.txt', 'after')
    }
    assert.equal(await sandbox.files.read('state.txt'), 'before')
  } finally {
    await Promise.all(forks.map((fork) => fork.kill()))
  }
})

withSandbox('create, list and delete snapshots', async (sandbox) => {
  await sandbox.files.write('state.txt', 'kept')
  const { snapshotId } = await sandbox.createSnapshot()
  const copy = await Sandbox.create(snapshotId)
  try {
    assert.equal(await copy.files.read('state.txt'), 'kept')
    const listed = await Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId }).nextItems()
    assert.deepEqual(listed.map((snapshot) => snapshot.snapshotId), [snapshotId])
  } finally {
    await copy.kill()
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), false)
  }
})

withSandbox('metrics of a sandbox', async (sandbox) => {
  const start = new Date()
  await until(async () => (await sandbox.getMetrics({ start, end: new Date() })).length > 0)
  const [metric] = await sandbox.getMetrics()
  assert.ok(metric.memTotal > 0 && metric.diskTotal > 0 && metric.cpuCount > 0)
  const before = { start: new Date(start - 7_200_000), end: new Date(start - 3_600_000) }
  assert.deepEqual(await sandbox.getMetrics(before), [])
})

withSandbox('network rules are stored and updated', { network: { denyOut: ['0.0.0.0/0'], allowOut: ['192.0.2.7'] } }, async (sandbox) => {
  const { network } = await sandbox.getInfo()
  assert.deepEqual([network.allowOut, network.denyOut], [['192.0.2.7'], ['0.0.0.0/0']])
  await sandbox.updateNetwork({ denyOut: ['198.51.100.0/24'] })
  assert.deepEqual((await sandbox.getInfo()).network.denyOut, ['198.51.100.0/24'])
  await assert.rejects(sandbox.updateNetwork({ denyOut: ['example.com'] }))
})

test('invalid requests are refused', async () => {
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
  await assert.rejects(Sandbox.create('no-such-template-anywhere'))
  await assert.rejects(Sandbox.connect('ineverexisted00000'), SandboxNotFoundError)
  await assert.rejects(Sandbox.fork('ineverexisted00000', { count: 0 }))
  assert.equal(await Sandbox.kill('ineverexisted00000'), false)
})
