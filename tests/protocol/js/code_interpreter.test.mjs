/** Tests of the JavaScript SDK of the code interpreter with real kernels, in one sandbox. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'

let sandbox
before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 600_000, envs: { GIVEN: 'at the start' } })
})
after(async () => sandbox?.kill())

test('keeps variables between executions', async () => {
  await sandbox.runCode('x = 1')
  const execution = await sandbox.runCode('x += 1; x')
  assert.equal(execution.text, '2')
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.runCode('x')).text, '2')
})

test('streams output, results and errors', async () => {
  const seen = []
  const execution = await sandbox.runCode("import sys; print('a'); print('b', file=sys.stderr); display('c'); 1/0", {
    onStdout: (message) => seen.push(['out', message.line]),
    onStderr: (message) => seen.push(['err', message.line]),
    onResult: (result) => seen.push(['result', result.text]),
    onError: (error) => seen.push(['error', error.name]),
  })
  assert.deepEqual(execution.logs, { stdout: ['a\n'], stderr: ['b\n'] })
  assert.deepEqual(seen.map(([kind]) => kind).sort(), ['err', 'error', 'out', 'result'])
  assert.equal(execution.error.name, 'ZeroDivisionError')
  assert.match(execution.error.traceback, /ZeroDivisionError: division by zero/)
})

test('returns tables as data and figures as charts', async () => {
  const table = await sandbox.runCode("import pandas as pd; pd.DataFrame({'a': [1, None], 'd': pd.to_datetime(['2026-01-02', None])})")
  assert.deepEqual(table.results[0].data, { a: [1, null], d: ['2026-01-02T00:00:00', null] })
  const code = `
import matplotlib.pyplot as plt
data = {'Class A': [85, 90, 78, 92, 88], 'Class B': [95, 89, 76, 91, 84, 87], 'Class C': [75, 82, 88, 79, 86]}
fig, ax = plt.subplots(figsize=(10, 6))
ax.set_title('Scores'); ax.set_xlabel('Class'); ax.set_ylabel('Score')
ax.boxplot(data.values(), labels=data.keys(), patch_artist=True)
plt.show()`
  const { chart, png } = (await sandbox.runCode(code)).results[0]
  assert.ok(png)
  assert.equal(chart.type, 'box_and_whisker')
  assert.equal(chart.title, 'Scores')
  assert.equal(chart.x_unit, null)
  assert.deepEqual(chart.elements.map((bar) => bar.outliers), [[], [76], []])
  assert.deepEqual(chart.elements.map((bar) => bar.median), [88, 88, 82])
})

test('contexts are created, restarted and removed', async () => {
  const context = await sandbox.createCodeContext({ cwd: '/tmp', language: 'js' })
  assert.equal(context.language, 'javascript')
  assert.equal((await sandbox.runCode('process.cwd()', { context })).text, '/tmp')
  await sandbox.runCode('var kept = 1', { context })
  await sandbox.restartCodeContext(context)
  assert.equal((await sandbox.runCode('typeof kept', { context })).text, 'undefined')
  assert.ok((await sandbox.listCodeContexts()).some(({ id }) => id === context.id))
  await sandbox.removeCodeContext(context)
  assert.ok(!(await sandbox.listCodeContexts()).some(({ id }) => id === context.id))
  await assert.rejects(sandbox.runCode('1', { context }), /not found/)
})

test('runs JavaScript, TypeScript and Bash', async () => {
  assert.deepEqual((await sandbox.runCode('console.log("Hi")', { language: 'js' })).logs.stdout, ['Hi\n'])
  assert.equal((await sandbox.runCode("await Promise.resolve('Hi')", { language: 'js' })).text, 'Hi')
  const typed = 'function minus(x: number, y: number): number {\n  return x - y\n}\n\nminus(1, 2)'
  assert.equal((await sandbox.runCode(typed, { language: 'ts' })).results[0].text, '-1')
  assert.deepEqual((await sandbox.runCode('echo $GIVEN', { language: 'bash' })).logs.stdout, ['at the start\n'])
})

test('environment variables of the sandbox and of one execution', async () => {
  const read = "import os; os.getenv('GIVEN')"
  assert.equal((await sandbox.runCode(read)).text, 'at the start')
  assert.equal((await sandbox.runCode(read, { envs: { GIVEN: 'once' } })).text, 'once')
  assert.equal((await sandbox.runCode(read)).text, 'at the start')
})

test('interrupts the execution when the client times out', async () => {
  await assert.rejects(sandbox.runCode('import time; time.sleep(60)', { timeoutMs: 1500 }))
  assert.equal((await sandbox.runCode('1 + 1', { timeoutMs: 20_000 })).text, '2')
})
