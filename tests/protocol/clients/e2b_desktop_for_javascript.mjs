import assert from 'node:assert'
import { setTimeout as sleep } from 'node:timers/promises'
import { inflateSync } from 'node:zlib'
import { Sandbox } from '@e2b/desktop'

const TIMEOUT_MS = 60_000

/** Wait until `condition` returns a true value, and return it. An exception counts as false. */
async function until(description, condition) {
  let last
  for (const end = Date.now() + TIMEOUT_MS; Date.now() < end; await sleep(200)) {
    try {
      last = await condition()
      if (last) return last
    } catch (error) {
      last = error
    }
  }
  assert.fail(`${description}: ${last}`)
}

/** Return the size of a PNG and whether it has many different pixels. */
function inspectImage(png) {
  const bytes = Buffer.from(png)
  assert.equal(bytes.subarray(1, 4).toString(), 'PNG')
  const parts = []
  for (let at = 8; at < bytes.length; at += 12 + bytes.readUInt32BE(at)) {
    if (bytes.toString('latin1', at + 4, at + 8) === 'IDAT') parts.push(bytes.subarray(at + 8, at + 8 + bytes.readUInt32BE(at)))
  }
  const values = new Set(inflateSync(Buffer.concat(parts)))
  return { width: bytes.readUInt32BE(16), height: bytes.readUInt32BE(20), colourful: values.size > 100 }
}

/** Return the VNC security types that the server offers to a browser: 1 is none, 2 is a password. */
function securityTypes(url) {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(new URL('/websockify', url.replace(/^http/, 'ws')), 'binary')
    socket.binaryType = 'arraybuffer'
    let received = Buffer.alloc(0)
    let answered = false
    socket.onerror = () => reject(new Error(`no VNC at ${url}`))
    socket.onmessage = ({ data }) => {
      received = Buffer.concat([received, Buffer.from(data)])
      if (!answered && received.length >= 12) {
        if (received.toString('latin1', 0, 12) !== 'RFB 003.008\n') reject(new Error(received.toString('latin1')))
        socket.send(received.subarray(0, 12))
        answered = true
      }
      if (received.length > 12 && received.length > 12 + received[12]) {
        resolve([...received.subarray(13, 13 + received[12])].sort())
        socket.close()
      }
    }
  })
}

const desktop = await Sandbox.create({ resolution: [1280, 800] })
try {
  const focus = async () => desktop.getWindowTitle(await desktop.getCurrentWindowId())
  const hasWindow = async (program, title) => {
    const titles = await Promise.all((await desktop.getApplicationWindows(program)).map((one) => desktop.getWindowTitle(one)))
    return titles.some((one) => one.includes(title))
  }
  await until('a desktop', async () => inspectImage(await desktop.screenshot()).colourful)
  const { width, height } = inspectImage(await desktop.screenshot())
  assert.deepEqual({ width, height }, { width: 1280, height: 800 })
  assert.deepEqual(await desktop.getScreenSize(), { width: 1280, height: 800 })
  await desktop.moveMouse(300, 200)
  assert.deepEqual(await desktop.getCursorPosition(), { x: 300, y: 200 })

  await desktop.files.write('/home/user/notes.txt', 'hello\n')
  await desktop.open('/home/user/notes.txt')
  await until('an editor', () => hasWindow('mousepad', 'notes.txt'))
  await until('its focus', async () => (await focus()).includes('notes.txt'))
  await desktop.press(['ctrl', 'end'])
  await desktop.write("typed by 'a program'")
  await desktop.press('enter')
  await desktop.press(['ctrl', 's'])
  const notes = () => desktop.files.read('/home/user/notes.txt')
  await until('a saved file', async () => (await notes()) === "hello\ntyped by 'a program'\n")

  await desktop.launch('xfce4-terminal')
  await until('a terminal', () => hasWindow('xfce4-terminal', 'Terminal'))
  await until('its focus', async () => (await focus()).includes('Terminal'))
  await desktop.write('echo $((6 * 7)) > answer.txt')
  await desktop.press('enter')
  await until('an answer', async () => (await desktop.files.read('/home/user/answer.txt')) === '42\n')
  await desktop.wait(100)

  await desktop.stream.start()
  let url = desktop.stream.getUrl()
  const page = await fetch(url)
  assert.equal(page.status, 200)
  assert.match(await page.text(), /noVNC/)
  assert.deepEqual(await securityTypes(url), [1])
  await desktop.stream.stop()
  await until('a closed port', async () => (await fetch(url)).status === 502)
  await desktop.stream.start({ requireAuth: true })
  url = desktop.stream.getUrl({ authKey: desktop.stream.getAuthKey() })
  assert.equal(new URL(url).searchParams.get('password'), desktop.stream.getAuthKey())
  assert.deepEqual(await securityTypes(url), [2])

  await desktop.pause()
  await desktop.connect()
  assert.match(await focus(), /Terminal/)
  await desktop.write('echo still here > after.txt')
  await desktop.press('enter')
  await until('what was typed', async () => (await desktop.files.read('/home/user/after.txt')) === 'still here\n')
  assert.deepEqual(await securityTypes(url), [2])
  await desktop.stream.stop()
} finally {
  await desktop.kill()
}
process.exit(0)
