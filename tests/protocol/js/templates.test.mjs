import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { BuildError, Sandbox, Template, TemplateError, waitForPort } from 'e2b'

/** Define a test with its own template name, and delete the template afterwards. */
function withTemplateName(title, body) {
  test(title, async () => {
    const name = `js-${randomUUID()}`
    try {
      await body(name)
    } finally {
      await fetch(`${process.env.E2B_API_URL}/templates/${name}`, {
        method: 'DELETE',
        headers: { 'X-API-Key': process.env.E2B_API_KEY },
      })
    }
  })
}

async function build(template, name, options = {}) {
  const logs = []
  const info = await Template.build(template, name, { ...options, onBuildLogs: (entry) => logs.push(entry.message) })
  return { info, logs }
}

async function withSandboxOf(template, body) {
  const sandbox = await Sandbox.create(template)
  try {
    return await body(sandbox)
  } finally {
    await sandbox.kill()
  }
}

withTemplateName('steps, files and a start command', async (name) => {
  const context = mkdtempSync(join(tmpdir(), 'template-'))
  try {
    mkdirSync(join(context, 'site'))
    writeFileSync(join(context, 'site', 'index.html'), 'served')
    symlinkSync('index.html', join(context, 'site', 'link.html'))
    const template = () =>
      Template({ fileContextPath: context })
        .fromBaseImage()
        .setEnvs({ GREETING: 'hello' })
        .setWorkdir('/srv/app')
        .copy('site', 'site')
        .copy('site/index.html', '/opt/one.html', { user: 'root', mode: 0o600 })
        .runCmd('echo "$GREETING" > greeting')
        .makeDir('deep/er')
        .setStartCmd('cd site && python3 -m http.server 8000', waitForPort(8000))
    const first = await build(template(), name, { cpuCount: 1, memoryMB: 512 })
    assert.ok(first.logs.includes('Template is ready'))
    await withSandboxOf(name, async (sandbox) => {
      const result = await sandbox.commands.run(
        'cat greeting; curl -s localhost:8000/link.html; echo; sudo stat -c "%U %a" /opt/one.html; stat -c %U site deep/er'
      )
      assert.equal(result.stdout, 'hello\nserved\nroot 600\nuser\nuser\n')
    })
    const started = Date.now()
    const again = await build(template(), name)
    assert.ok(Date.now() - started < 5000)
    assert.equal(again.logs.filter((line) => line.startsWith('CACHED [builder')).length, 6)
  } finally {
    rmSync(context, { recursive: true })
  }
})

withTemplateName('a failed build names the step', async (name) => {
  const template = Template().fromBaseImage().runCmd('echo before').runCmd('cat nothing/there')
  await assert.rejects(Template.build(template, name), (error) => {
    assert.ok(error instanceof BuildError)
    assert.match(error.message, /failed to run command 'cat nothing\/there': exit status 1/)
    return true
  })
  const info = await Template.buildInBackground(template, name)
  let status
  do {
    status = await Template.getBuildStatus(info)
  } while (['building', 'waiting'].includes(status.status))
  assert.equal(status.status, 'error')
  assert.equal(status.reason.step, '2')
})

withTemplateName('template names and tags', async (name) => {
  assert.equal(await Template.exists(name), false)
  const { info } = await build(Template().fromTemplate('base'), `${name}:v1`, { tags: ['stable'] })
  assert.deepEqual([...info.tags].sort(), ['stable', 'v1'])
  assert.equal(await Template.exists(name), true)
  const assigned = await Template.assignTags(`${name}:v1`, ['default', 'next'])
  assert.equal(assigned.buildId, info.buildId)
  await Template.removeTags(name, 'stable')
  await assert.rejects(Template.removeTags(name, 'stable'), TemplateError)
  assert.deepEqual((await Template.getTags(name)).map((one) => one.tag).sort(), ['default', 'next', 'v1'])
  await withSandboxOf(`${name}:next`, async (sandbox) => {
    assert.equal((await sandbox.getInfo()).templateId, info.templateId)
  })
})
