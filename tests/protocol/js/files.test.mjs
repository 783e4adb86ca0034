import assert from 'node:assert/strict'
import { FileNotFoundError, FilesystemEventType, SandboxError } from 'e2b'
import { until, withSandbox } from './sandboxes.mjs'

withSandbox('write, read, overwrite', async (sandbox) => {
  const info = await sandbox.files.write('deep/note.txt', 'first and longer')
  assert.deepEqual([info.name, info.type, info.path], ['note.txt', 'file', '/home/user/deep/note.txt'])
  await sandbox.files.write('deep/note.txt', 'ünï 🦀')
  assert.equal(await sandbox.files.read('deep/note.txt'), 'ünï 🦀')
  const bytes = await sandbox.files.read('deep/note.txt', { format: 'bytes' })
  assert.equal(new TextDecoder().decode(bytes), 'ünï 🦀')
  const stream = await sandbox.files.read('deep/note.txt', { format: 'stream' })
  let text = ''
  for await (const chunk of stream) text += Buffer.from(chunk).toString()
  assert.equal(text, 'ünï 🦀')
  await assert.rejects(sandbox.files.read('nowhere'), FileNotFoundError)
  await assert.rejects(sandbox.files.read('/tmp'), SandboxError)
})

withSandbox('write accepts every data type', async (sandbox) => {
  const blob = new Blob(['from a blob'])
  const buffer = new Uint8Array([0, 255, 128]).buffer
  const written = await sandbox.files.writeFiles([
    { path: 'text.txt', data: 'text' },
    { path: '/tmp/blob.bin', data: blob },
    { path: 'buffer.bin', data: buffer },
  ])
  assert.deepEqual(written.map((info) => info.path), ['/home/user/text.txt', '/tmp/blob.bin', '/home/user/buffer.bin'])
  assert.equal(await sandbox.files.read('/tmp/blob.bin'), 'from a blob')
  assert.deepEqual([...(await sandbox.files.read('buffer.bin', { format: 'bytes' }))], [0, 255, 128])
})

withSandbox('compressed upload and download', async (sandbox) => {
  const text = 'compress me, '.repeat(5000)
  await sandbox.files.write('text.txt', text, { gzip: true })
  assert.equal(await sandbox.files.read('text.txt'), text)
  assert.equal(await sandbox.files.read('text.txt', { gzip: true }), text)
})

withSandbox('metadata of a file', { notInGvisor: 'gVisor has no extended attributes' }, async (sandbox) => {
  const info = await sandbox.files.write('a.txt', 'x', { metadata: { author: 'mish' } })
  assert.deepEqual(info.metadata, { author: 'mish' })
  assert.deepEqual((await sandbox.files.getInfo('a.txt')).metadata, { author: 'mish' })
  await sandbox.files.write('a.txt', 'y')
  assert.equal((await sandbox.files.getInfo('a.txt')).metadata, undefined)
})

withSandbox('list, info, rename, remove', async (sandbox) => {
  assert.equal(await sandbox.files.makeDir('top/a'), true)
  assert.equal(await sandbox.files.makeDir('top/a'), false)
  await sandbox.files.write('top/b.txt', 'four')
  const entries = await sandbox.files.list('top', { depth: 2 })
  assert.deepEqual(entries.map((entry) => [entry.name, entry.type]), [['a', 'dir'], ['b.txt', 'file']])
  const info = await sandbox.files.getInfo('top/b.txt')
  assert.deepEqual([info.size, info.mode, info.permissions, info.owner], [4, 0o644, '-rw-r--r--', 'user'])
  assert.equal((await sandbox.files.rename('top/b.txt', 'top/c.txt')).path, '/home/user/top/c.txt')
  await sandbox.files.remove('top')
  await sandbox.files.remove('top')
  assert.equal(await sandbox.files.exists('top'), false)
  await assert.rejects(sandbox.files.list('top'), FileNotFoundError)
  await assert.rejects(sandbox.files.getInfo('top'), FileNotFoundError)
})

withSandbox('watch a directory', async (sandbox) => {
  await sandbox.files.makeDir('watched')
  const seen = new Set()
  const handle = await sandbox.files.watchDir('watched', (event) => { seen.add(`${event.type} ${event.name}`) }, { recursive: true })
  await sandbox.files.write('watched/note.txt', 'x')
  await sandbox.files.makeDir('watched/late')
  await until(() => seen.has(`${FilesystemEventType.CREATE} late`))
  await sandbox.files.write('watched/late/deep.txt', 'x')
  await until(() => seen.has(`${FilesystemEventType.WRITE} note.txt`) && seen.has(`${FilesystemEventType.WRITE} late/deep.txt`))
  await handle.stop()
  await assert.rejects(sandbox.files.watchDir('nowhere', () => {}), FileNotFoundError)
  await sandbox.files.write('plain', 'x')
  await assert.rejects(sandbox.files.watchDir('plain', () => {}), SandboxError)
})

withSandbox('signed URLs for download and upload', async (sandbox) => {
  await sandbox.files.write('hello.txt', 'hello world')
  const valid = await fetch(await sandbox.downloadUrl('hello.txt', { useSignatureExpiration: 10_000 }))
  assert.deepEqual([valid.status, await valid.text()], [200, 'hello world'])
  const expired = await fetch(await sandbox.downloadUrl('hello.txt', { useSignatureExpiration: -10_000 }))
  assert.equal(expired.status, 401)
  assert.deepEqual(await expired.json(), { code: 401, message: 'signature is already expired' })
  for (const [user, path] of [[undefined, '/home/user/up.txt'], ['root', '/root/up.txt']]) {
    const form = new FormData()
    form.append('file', 'file content')
    const upload = await fetch(await sandbox.uploadUrl('up.txt', { user, useSignatureExpiration: 10_000 }), { method: 'POST', body: form })
    assert.equal(upload.status, 200)
    assert.deepEqual(await upload.json(), [{ name: 'up.txt', path, type: 'file' }])
  }
})
