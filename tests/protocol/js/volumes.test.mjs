/** Tests of volumes: their content through the API, and mounted in sandboxes. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox, Volume, VolumeError, VolumeNotFoundError, VolumePathNotFoundError } from 'e2b'

function withVolume(name, body) {
  test(name, async () => {
    const volume = await Volume.create(`js-${Date.now()}-${Math.random().toString(36).slice(2)}`)
    try {
      await body(volume)
    } finally {
      await Volume.destroy(volume.volumeId)
    }
  })
}

async function readAll(stream) {
  const pieces = []
  for await (const piece of stream) pieces.push(Buffer.from(piece))
  return Buffer.concat(pieces)
}

test('create, connect and destroy', async () => {
  const name = `js-life-${Date.now()}`
  const volume = await Volume.create(name)
  assert.equal(volume.name, name)
  assert.equal((await Volume.getInfo(volume.volumeId)).name, name)
  assert.ok((await Volume.list()).some((one) => one.volumeId === volume.volumeId))
  await assert.rejects(Volume.create(name), VolumeError)
  await assert.rejects(Volume.create('a b'), VolumeError)
  const connected = await Volume.connect(volume.volumeId)
  await volume.writeFile('/file', 'it')
  assert.equal(await connected.readFile('/file'), 'it')
  assert.equal(await Volume.destroy(volume.volumeId), true)
  assert.equal(await Volume.destroy(volume.volumeId), false)
  await assert.rejects(Volume.getInfo(volume.volumeId), VolumeNotFoundError)
})

withVolume('files are written and read in all formats', async (volume) => {
  await volume.writeFile('/text', 'Grüße')
  await volume.writeFile('/buffer', new TextEncoder().encode('bytes').buffer)
  await volume.writeFile('/blob', new Blob(['blob'], { type: 'text/plain' }))
  await volume.writeFile('/empty', '')
  assert.equal(await volume.readFile('/text', { format: 'text' }), 'Grüße')
  assert.deepEqual(await volume.readFile('/buffer', { format: 'bytes' }), new TextEncoder().encode('bytes'))
  assert.equal(await (await volume.readFile('/blob', { format: 'blob' })).text(), 'blob')
  assert.equal(await volume.readFile('/empty'), '')
  assert.equal(String(await readAll(await volume.readFile('/text', { format: 'stream' }))), 'Grüße')
})

withVolume('streams are uploaded and downloaded', async (volume) => {
  const block = new Uint8Array(1 << 20).fill(7)
  let left = 24
  const source = new ReadableStream({
    pull(controller) {
      if (left-- > 0) controller.enqueue(block)
      else controller.close()
    },
  })
  assert.equal((await volume.writeFile('/big', source)).size, 24 << 20)
  const read = await readAll(await volume.readFile('/big', { format: 'stream' }))
  assert.equal(read.length, 24 << 20)
  assert.ok(read.every((byte) => byte === 7))
})

withVolume('owners, modes and overwriting', async (volume) => {
  await volume.writeFile('/file', 'first', { uid: 1001, gid: 1002, mode: 0o640 })
  const info = await volume.getInfo('/file')
  assert.deepEqual([info.type, info.uid, info.gid, info.mode], ['file', 1001, 1002, 0o640])
  assert.ok(info.mtime instanceof Date)
  await assert.rejects(volume.writeFile('/file', 'second'), VolumeError)
  await volume.writeFile('/file', 'second', { force: true })
  assert.equal(await volume.readFile('/file'), 'second')
  const updated = await volume.updateMetadata('/file', { uid: 7, gid: 8, mode: 0o755 })
  assert.deepEqual([updated.uid, updated.gid, updated.mode], [7, 8, 0o755])
  await assert.rejects(volume.updateMetadata('/none', { mode: 0o644 }), VolumePathNotFoundError)
})

withVolume('directories are created, listed and removed', async (volume) => {
  await volume.makeDir('/a/b/c', { force: true })
  await volume.writeFile('/a/file', 'x')
  await assert.rejects(volume.makeDir('/a'), VolumeError)
  await assert.rejects(volume.makeDir('/x/y'), VolumePathNotFoundError)
  assert.deepEqual((await volume.list('/')).map((one) => one.path), ['/a'])
  assert.deepEqual((await volume.list('/a', { depth: 2 })).map((one) => one.path), ['/a/b', '/a/b/c', '/a/file'])
  await assert.rejects(volume.list('/none'), VolumePathNotFoundError)
  assert.equal(await volume.exists('/a/b'), true)
  await volume.remove('/a')
  assert.equal(await volume.exists('/a'), false)
  await assert.rejects(volume.remove('/a'), VolumePathNotFoundError)
})

withVolume('several sandboxes share a volume', async (volume) => {
  const sandboxes = []
  try {
    for (const mounted of [volume, volume.name]) {
      sandboxes.push(await Sandbox.create('base', { volumeMounts: { '/mnt/data': mounted } }))
    }
    const [one, two] = sandboxes
    await one.files.write('/mnt/data/hello.txt', 'shared')
    assert.equal(await two.files.read('/mnt/data/hello.txt'), 'shared')
    assert.equal(await volume.readFile('/hello.txt'), 'shared')
    assert.deepEqual((await one.getInfo()).volumeMounts, [{ name: volume.name, path: '/mnt/data' }])
    await assert.rejects(Volume.destroy(volume.volumeId), VolumeError)
  } finally {
    await Promise.all(sandboxes.map((sandbox) => sandbox.kill()))
  }
  await assert.rejects(Sandbox.create('base', { volumeMounts: { '/mnt/data': 'no-such-volume' } }), /not found/)
})
