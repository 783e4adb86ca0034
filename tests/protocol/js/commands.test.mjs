import assert from 'node:assert/strict'
import { CommandExitError, InvalidArgumentError, NotFoundError, SandboxError, TimeoutError } from 'e2b'
import { until, withSandbox } from './sandboxes.mjs'

withSandbox('output and exit codes', async (sandbox) => {
  const result = await sandbox.commands.run('echo out; echo err >&2')
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
  await assert.rejects(sandbox.commands.run('echo partial; exit 42'), (error) => {
    assert.ok(error instanceof CommandExitError)
    assert.deepEqual([error.exitCode, error.stdout], [42, 'partial\n'])
    return true
  })
  for (const text of ['!@#$%^&*()_+', 'Hello,\nWorld!', 'naïve 日本語 🦀']) {
    assert.equal((await sandbox.commands.run(`echo "${text}"`)).stdout, `${text}\n`)
  }
})

withSandbox('callbacks, users, directories', async (sandbox) => {
  let output = ''
  await sandbox.commands.run('echo one; echo two', { onStdout: (data) => { output += data } })
  assert.equal(output, 'one\ntwo\n')
  assert.equal((await sandbox.commands.run('id -un', { user: 'root' })).stdout, 'root\n')
  assert.equal((await sandbox.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
  await assert.rejects(sandbox.commands.run('pwd', { cwd: '/no/such/place' }), InvalidArgumentError)
})

withSandbox('timeout', async (sandbox) => {
  const started = Date.now()
  await assert.rejects(sandbox.commands.run('sleep 30', { timeoutMs: 1000 }), TimeoutError)
  assert.ok(Date.now() - started < 6000)
})

withSandbox('stdin reaches the command', async (sandbox) => {
  const command = await sandbox.commands.run('cat', { background: true, stdin: true })
  await sandbox.commands.sendStdin(command.pid, 'Hello,\n')
  await sandbox.commands.sendStdin(command.pid, 'World!')
  await sandbox.commands.closeStdin(command.pid)
  assert.equal((await command.wait()).stdout, 'Hello,\nWorld!')
})

withSandbox('list, connect, kill', async (sandbox) => {
  const command = await sandbox.commands.run('echo up; sleep 60', { background: true })
  await until(() => command.stdout === 'up\n')
  assert.deepEqual((await sandbox.commands.list()).map((process) => process.pid), [command.pid])
  assert.equal((await sandbox.commands.connect(command.pid)).pid, command.pid)
  assert.equal(await sandbox.commands.kill(command.pid), true)
  await assert.rejects(sandbox.commands.run(`kill -0 ${command.pid}`), CommandExitError)
  await assert.rejects(command.wait(), CommandExitError)
  assert.equal(await sandbox.commands.kill(999999), false)
  await assert.rejects(sandbox.commands.connect(999999), NotFoundError)
})

withSandbox('reconnect after a disconnect', async (sandbox) => {
  const command = await sandbox.commands.run('read x; echo got $x', { background: true, stdin: true })
  await command.disconnect()
  const again = await sandbox.commands.connect(command.pid)
  await sandbox.commands.sendStdin(command.pid, 'word\n')
  assert.equal((await again.wait()).stdout, 'got word\n')
})

withSandbox('killing the sandbox ends the stream with an error', async (sandbox) => {
  const command = await sandbox.commands.run('sleep 60', { background: true })
  await sandbox.kill()
  await assert.rejects(command.wait(), (error) => {
    assert.ok(error instanceof SandboxError)
    assert.match(error.message, /sandbox was killed or reached its end of life/)
    return true
  })
})

withSandbox('create and resize a terminal', async (sandbox) => {
  const decoder = new TextDecoder()
  let shown = ''
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, envs: { ABC: '123' }, onData: (data) => { shown += decoder.decode(data) } })
  await sandbox.pty.resize(terminal.pid, { cols: 111, rows: 24 })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('echo $ABC; tput cols; exit\n'))
  assert.equal((await terminal.wait()).exitCode, 0)
  assert.match(shown, /123/)
  assert.match(shown, /111/)
  assert.equal(await sandbox.pty.kill(999999), false)
})

withSandbox('reconnect to a terminal after a disconnect', async (sandbox) => {
  let first = ''
  let second = ''
  const text = (data) => new TextDecoder().decode(data)
  const type = (pid, line) => sandbox.pty.sendInput(pid, new TextEncoder().encode(line))
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => { first += text(data) } })
  await type(terminal.pid, 'echo one-$((1+1))\n')
  await until(() => first.includes('one-2'))
  await terminal.disconnect()
  const again = await sandbox.pty.connect(terminal.pid, { onData: (data) => { second += text(data) } })
  await type(terminal.pid, 'echo two-$((1+1))\nexit\n')
  assert.equal((await again.wait()).exitCode, 0)
  assert.match(second, /two-2/)
})

withSandbox('many concurrent commands', async (sandbox) => {
  const results = await Promise.all(Array.from({ length: 40 }, (_, number) => sandbox.commands.run(`sleep 0.3; echo ${number}`)))
  assert.deepEqual(results.map((result) => result.stdout), results.map((_, number) => `${number}\n`))
})
