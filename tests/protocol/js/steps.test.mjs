/** Tests of template steps that no other test uses. */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { BuildError, Sandbox, Template } from 'e2b'

const recordingScript = (program) =>
  `printf "%s\\n" "#!/bin/sh" "echo \\$(basename \\$0) \\$* >> /opt/called" > ${program} && chmod +x ${program}`
const programs = ['bun', 'devcontainer', 'mcp-gateway'].map((name) => `/usr/local/bin/${name}`)

async function deleteTemplate(name) {
  const headers = { 'X-API-Key': process.env.E2B_API_KEY }
  await fetch(`${process.env.E2B_API_URL}/templates/${name}`, { method: 'DELETE', headers })
}

async function readFile(template, path) {
  const sandbox = await Sandbox.create(template)
  try {
    return await sandbox.files.read(path)
  } finally {
    await sandbox.kill()
  }
}

test('steps for packages, files and git', { timeout: 150_000 }, async () => {
  const name = `js-${randomUUID()}`
  const context = mkdtempSync(join(tmpdir(), 'template-'))
  writeFileSync(join(context, 'a.txt'), 'a')
  writeFileSync(join(context, 'b.txt'), 'b')
  try {
    const template = Template({ fileContextPath: context })
      .skipCache()
      .fromBaseImage()
      .copyItems([{ src: 'a.txt', dest: 'got/' }, { src: 'b.txt', dest: 'got/' }])
      .pipInstall('idna')
      .npmInstall('is-odd', { g: true })
      .runCmd(['git init -q repo', 'git -C repo -c user.name=a -c user.email=a@b.c commit -q --allow-empty -m one'])
      .gitClone('repo', 'cloned')
      .rename('cloned', 'renamed')
      .makeSymlink('renamed', 'linked')
      .remove('repo', { recursive: true })
      .setUser('root')
      .runCmd('id -un > /opt/who')
      .setUser('user')
      .runCmd('cat got/a.txt got/b.txt; python3 -c "import idna" && git -C linked log --oneline && test ! -e repo')
      .setReadyCmd('test -e /opt/who')
    await Template.build(template, name)
    assert.equal(await readFile(name, '/opt/who'), 'root\n')
  } finally {
    await deleteTemplate(name)
    rmSync(context, { recursive: true })
  }
})

test('steps that need templates of E2B', { timeout: 150_000 }, async () => {
  const e2bTemplates = ['mcp-gateway', 'devcontainer']
  const created = [`js-mcp-${randomUUID()}`, `js-container-${randomUUID()}`]
  const steps = ['touch /opt/called', 'chmod 666 /opt/called', ...[...programs, '/prepare-exec.sh'].map(recordingScript)]
  try {
    for (const name of e2bTemplates) await Template.build(Template().fromBaseImage().runCmd(steps, { user: 'root' }), name)
    await Template.build(Template().fromTemplate('mcp-gateway').addMcpServer('exa').bunInstall('zod'), created[0])
    assert.equal(await readFile(created[0], '/opt/called'), 'mcp-gateway pull exa\nbun install zod\n')
    const container = Template().fromTemplate('devcontainer').betaDevContainerPrebuild('/srv/app')
    await Template.build(container.betaSetDevContainerStart('/srv/app'), created[1])
    assert.match(await readFile(created[1], '/opt/called'), /devcontainer up --workspace-folder \/srv\/app/)
  } finally {
    for (const name of [...created, ...e2bTemplates]) await deleteTemplate(name)
  }
  assert.throws(() => Template().fromBaseImage().addMcpServer('exa'), BuildError)
})

test('conversion to Dockerfile and JSON', async () => {
  const template = Template().fromDockerfile('FROM debian:bookworm\nRUN true\n')
  assert.match(Template.toDockerfile(template), /FROM debian:bookworm/)
  assert.match(await Template.toJSON(template), /debian:bookworm/)
})
